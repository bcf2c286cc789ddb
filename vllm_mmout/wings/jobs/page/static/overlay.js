/** The canvas of the result: a preview, pixel by pixel as it was sent, so that its colours are those of the legend. */
import { byId } from "./elements.js";

/** The pixels of a PNG, without any change of their colours. */
export const decoded = (png) =>
  createImageBitmap(png, { colorSpaceConversion: "none", premultiplyAlpha: "none" });

/** A preview of a result over the input. */
export class Overlay {
  constructor() {
    this.canvas = byId("overlay");
    this.context = this.canvas.getContext("2d", { willReadFrequently: true, colorSpace: "srgb" });
    this.empty = true;
  }

  /** Show pixels of `decoded` in place of what is shown. */
  draw(bitmap) {
    const { canvas, context } = this;
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height]; // which clears it, too
    context.imageSmoothingEnabled = false;
    context.drawImage(bitmap, 0, 0);
    bitmap.close();
    this.empty = false;
  }

  /** Show nothing. */
  clear() {
    [this.canvas.width, this.canvas.height] = [1, 1];
    this.empty = true;
  }

  /** Columns and rows. */
  get size() {
    return [this.canvas.width, this.canvas.height];
  }

  /** Red, green, blue and alpha of a pixel. */
  colour(row, col) {
    return this.context.getImageData(col, row, 1, 1).data;
  }
}
