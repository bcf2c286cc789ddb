/** Shows row, column, value and coordinates of the pixel at the pointer or at the keyboard's crosshair. */
import { byId } from "./elements.js";

const PATIENCE_MS = 120;

/** The line below the map with the values of one pixel. */
export class Readout {
  constructor() {
    this.source = null;
    this.cell = null;
    this.asking = new AbortController();
  }

  /** Read pixels from another source (see sources.js), or from none if it is null. */
  use(source) {
    this.source = source;
    this.show(source && this.cell);
    source?.ready?.then(() => this.source === source && this.show(this.cell));
  }

  /**
   * Show a pixel.
   * @param {{row: number, col: number}|null} cell the pixel, or null to clear the line
   * @param {boolean} spoken whether a screen reader announces the pixel
   */
  show(cell, spoken = false) {
    this.asking.abort();
    this.cell = cell;
    const known = this.source ? cell : null;
    byId("at-row").textContent = known?.row ?? "–";
    byId("at-col").textContent = known?.col ?? "–";
    const at = { cell: known, spoken, waits: Boolean(known && this.source.later) };
    write(known && this.source.now(known), at);
    if (at.waits) this.#later(at);
  }

  #later(at) {
    const asking = (this.asking = new AbortController());
    const wait = setTimeout(async () => {
      try {
        write(await this.source.later(at.cell, asking.signal), { ...at, waits: false });
      } catch (error) {
        if (!asking.signal.aborted) write({ value: error.message }, { ...at, waits: false });
      }
    }, PATIENCE_MS);
    asking.signal.addEventListener("abort", () => clearTimeout(wait));
  }
}

function write(found, { cell, spoken, waits }) {
  const text = found?.value ?? (waits ? "…" : "–");
  byId("at-value").textContent = text;
  byId("at-value").style.setProperty("--swatch", found?.colour ?? "transparent");
  const placed = found?.x !== undefined;
  byId("at-place-part").hidden = !placed;
  byId("at-place").textContent = placed ? `${found.x}, ${found.y}` : "";
  byId("at-crs").textContent = found?.crs && found.crs.length <= 20 ? found.crs : "x, y";
  if (cell && spoken && !waits) byId("spoken").textContent = `row ${cell.row}, column ${cell.col}: ${text}`;
}
