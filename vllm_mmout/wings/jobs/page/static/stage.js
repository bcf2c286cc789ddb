/** The stage of the page: the map with the input and the result over it, and the readout of one pixel. */
import { Crosshair } from "./crosshair.js";
import { byId } from "./elements.js";
import { whole } from "./frame.js";
import { onGestures } from "./gestures.js";
import { Overlay, decoded } from "./overlay.js";
import { Picture } from "./picture.js";
import { Readout } from "./readout.js";
import { ofInput } from "./sources.js";
import { View } from "./view.js";

/** The input, the result, the crosshair and the readout, in one view. */
export class Stage {
  constructor() {
    this.picture = new Picture();
    this.overlay = new Overlay();
    this.readout = new Readout();
    this.view = new View(byId("map"));
    this.crosshair = new Crosshair(this.view, (cell) => this.readout.show(cell, true));
    this.frame = null;
    this.raster = null;
    this.turn = 0;
    onGestures(this.view, (px, py) => this.readout.show(this.frame?.cell(...this.view.at(px, py)) ?? null));
    this.view.onChange = () => this.view.box.classList.toggle("zoomed", !this.view.fitted);
    byId("zoom-in").addEventListener("click", () => this.view.zoom(1.5));
    byId("zoom-out").addEventListener("click", () => this.view.zoom(1 / 1.5));
    byId("zoom-fit").addEventListener("click", () => this.view.world && this.view.fit());
    const opacity = byId("opacity");
    const see = () => (this.overlay.canvas.style.opacity = opacity.value / 100);
    opacity.addEventListener("input", see);
    see();
  }

  /** Show an input, or none if it is null, and remove the result. */
  showInput(raster) {
    this.raster = raster;
    if (raster) this.picture.use(raster);
    this.clearResult();
  }

  /** Remove the result. The input, if there is one, stays visible. */
  clearResult() {
    const { raster } = this;
    this.turn++;
    this.overlay.clear();
    this.#show(raster && whole(raster.width, raster.height), Boolean(raster), false);
    this.readout.use(raster && ofInput(raster, this.picture));
  }

  /**
   * Show a preview of a result.
   * @param {Blob} png
   * @param {(size: [number, number]) => import("./frame.js").Frame|null} framed returns the position of a
   *     result of this size on the input, or null if the result is to be shown without the input
   * @param {[number, number]|null} size columns and rows of the result, or null to use the size of the preview
   * @returns {Promise<boolean>} false if something else was shown before the preview was decoded
   */
  async showResult(png, framed, size = null) {
    const turn = ++this.turn;
    const bitmap = await decoded(png);
    if (turn !== this.turn) return false;
    this.overlay.draw(bitmap);
    const known = size ?? this.overlay.size;
    const over = this.raster && framed(known);
    if (this.#show(over ?? whole(...known), Boolean(over), true)) this.readout.use(null);
    return true;
  }

  // Returns whether the frame has changed, so that the pointer is at another row and column.
  #show(frame, input, result) {
    const { view } = this;
    const moved = JSON.stringify(frame) !== JSON.stringify(this.frame);
    this.frame = frame;
    byId("empty").hidden = frame !== null;
    byId("zoom").hidden = frame === null;
    byId("opacity-part").hidden = !result || !input;
    this.overlay.canvas.classList.toggle("alone", !input);
    const world = frame && { x: 0, y: 0, width: frame.world[0], height: frame.world[1] };
    view.lay(byId("paper"), world);
    view.lay(this.picture.canvas, input ? world : null);
    view.lay(this.overlay.canvas, result ? frame.rect : null);
    if (frame) view.open(frame.world);
    if (moved) this.crosshair.use(frame);
    return moved;
  }
}
