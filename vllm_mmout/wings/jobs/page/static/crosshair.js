/** The crosshair of the keyboard: arrow keys move it from pixel to pixel, plus and minus zoom at its pixel. */
import { byId } from "./elements.js";

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** A mark on a pixel of a frame. */
export class Crosshair {
  /**
   * @param {import("./view.js").View} view
   * @param {(cell: {row: number, col: number}) => void} onMove
   */
  constructor(view, onMove) {
    Object.assign(this, { view, onMove, frame: null, cell: null, mark: byId("cross") });
    view.box.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Use another frame, and remove the crosshair until an arrow key is pressed. */
  use(frame) {
    this.frame = frame;
    this.cell = null;
    this.view.lay(this.mark, null);
  }

  #key(event) {
    if (!this.frame || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in STEPS) this.#move(STEPS[event.key], event.shiftKey ? 10 : 1);
    else if (event.key === "+" || event.key === "=") this.#zoom(1.5);
    else if (event.key === "-") this.#zoom(1 / 1.5);
    else if (event.key === "0") this.view.fit();
    else if (event.key === "Escape") this.view.lay(this.mark, null);
    else return;
    event.preventDefault();
  }

  #move([down, right], step) {
    const [cols, rows] = this.frame.size;
    const within = (at, length) => Math.min(Math.max(at, 0), length - 1);
    if (this.cell) {
      this.cell = {
        row: within(this.cell.row + down * step, rows),
        col: within(this.cell.col + right * step, cols),
      };
    } else this.cell = { row: Math.floor(rows / 2), col: Math.floor(cols / 2) };
    const place = this.frame.place(this.cell);
    this.view.lay(this.mark, place);
    this.view.reveal(place.x + place.width / 2, place.y + place.height / 2);
    this.onMove(this.cell);
  }

  #zoom(factor) {
    const { view } = this;
    if (!this.cell) return view.zoom(factor);
    const { x, y, width, height } = this.frame.place(this.cell);
    view.zoom(factor, view.x + (x + width / 2) * view.scale, view.y + (y + height / 2) * view.scale);
  }
}
