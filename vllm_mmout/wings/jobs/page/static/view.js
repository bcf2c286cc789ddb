/** The visible part of the map: positions the layers in the view by a scale and a shift. */

const MARGIN = 12;
const CLOSEST = 40;

/** Zoom and pan of the map. */
export class View {
  /** @param {HTMLElement} box the element that shows the map */
  constructor(box) {
    this.box = box;
    this.world = null;
    this.scale = 1;
    this.x = this.y = 0;
    this.fitted = true;
    this.layers = new Map();
    this.onChange = () => {};
    new ResizeObserver(() => this.world && (this.fitted ? this.fit() : this.#settle())).observe(box);
  }

  /** Set the size of the map. If the size changes, show the whole map, else keep scale and shift. */
  open(world) {
    const same = this.world?.[0] === world[0] && this.world?.[1] === world[1];
    this.world = world;
    if (!same) this.fit();
    else this.#settle();
  }

  /** Position an element on a rectangle of the map, or hide it if the rectangle is null. */
  lay(element, rect) {
    element.hidden = rect === null;
    if (rect) this.layers.set(element, rect);
    else this.layers.delete(element);
    if (this.world) this.#place();
  }

  /** Show the whole map. */
  fit() {
    this.fitted = true;
    this.scale = this.#smallest();
    this.#settle();
  }

  /** Zoom by a factor around the point (px, py) of the view, in CSS pixels. */
  zoom(factor, px = this.box.clientWidth / 2, py = this.box.clientHeight / 2) {
    if (!this.world) return;
    const smallest = this.#smallest();
    const scale = Math.min(Math.max(this.scale * factor, smallest), Math.max(CLOSEST, smallest));
    this.x = px - ((px - this.x) / this.scale) * scale;
    this.y = py - ((py - this.y) / this.scale) * scale;
    this.scale = scale;
    this.fitted = scale === smallest;
    this.#settle();
  }

  /** Shift the map by CSS pixels. */
  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.#settle();
  }

  /** Shift the map until a point of it is visible. */
  reveal(x, y) {
    const [px, py] = [this.x + x * this.scale, this.y + y * this.scale];
    const inside = (at, length) => Math.min(Math.max(at, 30), Math.max(length - 30, 30)) - at;
    this.pan(inside(px, this.box.clientWidth), inside(py, this.box.clientHeight));
  }

  /** Return the map coordinates of a point of the view, given in CSS pixels. */
  at(px, py) {
    return [(px - this.x) / this.scale, (py - this.y) / this.scale];
  }

  #smallest() {
    const [width, height] = this.world;
    const { clientWidth, clientHeight } = this.box;
    return Math.max(Math.min((clientWidth - 2 * MARGIN) / width, (clientHeight - 2 * MARGIN) / height), 1e-3);
  }

  #settle() {
    const settle = (at, length, size) =>
      size <= length ? (length - size) / 2 : Math.min(Math.max(at, length - size - MARGIN), MARGIN);
    this.x = settle(this.x, this.box.clientWidth, this.world[0] * this.scale);
    this.y = settle(this.y, this.box.clientHeight, this.world[1] * this.scale);
    this.#place();
    this.onChange();
  }

  #place() {
    for (const [element, rect] of this.layers) {
      const width = rect.width * this.scale;
      Object.assign(element.style, {
        left: `${this.x + rect.x * this.scale}px`,
        top: `${this.y + rect.y * this.scale}px`,
        width: `${width}px`,
        height: `${rect.height * this.scale}px`,
      });
      // The pixels of an enlarged layer stay sharp squares. The pixels of a reduced layer are averaged.
      if (element.width) element.classList.toggle("pixels", width * devicePixelRatio >= element.width);
    }
  }
}
