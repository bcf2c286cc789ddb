/** An input as the server shows it: its bands as typed arrays, on a grid that may be coarser than its own. */

const ARRAYS = {
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  float32: Float32Array,
};

/** Pixels of an input. */
export class Raster {
  /** @param {object} preview the answer of /v1/scenes/preview */
  constructor(preview) {
    const { width, height, shown, dtype, bands, usual, nodata } = preview;
    const bytes =
      Uint8Array.fromBase64?.(preview.data) ??
      Uint8Array.from(atob(preview.data), (character) => character.charCodeAt(0));
    const values = new ARRAYS[preview.data_dtype](bytes.buffer);
    const length = shown.width * shown.height;
    /** Of the input itself. */
    Object.assign(this, { width, height, dtype, usual });
    /** Of what is here. */
    this.shown = shown;
    this.names = bands.map((name, index) => name || `band ${index + 1}`);
    this.bands = bands.slice(0, values.length / length).map((_, i) => values.subarray(i * length, (i + 1) * length));
    // A float of 32 bits differs from the same number of 64.
    this.nodata = nodata !== null && values instanceof Float32Array ? Math.fround(nodata) : nodata;
  }

  /** Whether a value is no observation. */
  missing(value) {
    return value === this.nodata || value !== value;
  }

  /** Whether every pixel of the input is here. */
  get whole() {
    return this.shown.width === this.width && this.shown.height === this.height;
  }

  /** The value of a band (from 0) at a pixel of the input; null: no observation. */
  at(band, row, col) {
    const { width, height } = this.shown;
    const [y, x] = [Math.floor((row * height) / this.height), Math.floor((col * width) / this.width)];
    const value = this.bands[band][y * width + x];
    return this.missing(value) ? null : value;
  }
}
