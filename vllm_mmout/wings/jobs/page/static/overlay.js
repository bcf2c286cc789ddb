/** The canvas of the result. Its pixels are drawn unchanged, so that their colours match the legend exactly. */
import { byId } from "./elements.js";

/** Decode a PNG without any conversion of its colours. */
export const decoded = (png) =>
  createImageBitmap(png, { colorSpaceConversion: "none", premultiplyAlpha: "none" });

/** The preview of a result, drawn over the input. */
export class Overlay {
  constructor() {
    this.canvas = byId("overlay");
    this.context = this.canvas.getContext("2d", { willReadFrequently: true, colorSpace: "srgb" });
    this.empty = true;
  }

  /** Replace the shown preview by a bitmap from `decoded`, and close the bitmap. */
  draw(bitmap) {
    const { canvas, context } = this;
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height]; // this also clears the canvas
    context.imageSmoothingEnabled = false;
    context.drawImage(bitmap, 0, 0);
    bitmap.close();
    this.empty = false;
  }

  /** Remove the preview. */
  clear() {
    [this.canvas.width, this.canvas.height] = [1, 1];
    this.empty = true;
  }

  /** Size of the preview: [columns, rows]. */
  get size() {
    return [this.canvas.width, this.canvas.height];
  }

  /** Return red, green, blue and alpha of a pixel, each from 0 to 255. */
  colour(row, col) {
    return this.context.getImageData(col, row, 1, 1).data;
  }
}
