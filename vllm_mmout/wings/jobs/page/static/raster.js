/** The preview of an input from the server: its bands as typed arrays, on a grid that may be coarser than the input. */

const ARRAYS = {
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  float32: Float32Array,
};

/** The bands of an input at the resolution of its preview. */
export class Raster {
  /** @param {object} preview the response of /v1/scenes/preview */
  constructor(preview) {
    const { width, height, shown, dtype, bands, usual, nodata } = preview;
    const bytes =
      Uint8Array.fromBase64?.(preview.data) ??
      Uint8Array.from(atob(preview.data), (character) => character.charCodeAt(0));
    const values = new ARRAYS[preview.data_dtype](bytes.buffer);
    const length = shown.width * shown.height;
    /** Size and dtype of the input, and the numbers, from 1, of the bands to draw by default. */
    Object.assign(this, { width, height, dtype, usual });
    /** Size of the preview. */
    this.shown = shown;
    this.names = bands.map((name, index) => name || `band ${index + 1}`);
    this.bands = bands.slice(0, values.length / length).map((_, i) => values.subarray(i * length, (i + 1) * length));
    // JSON has nodata as a float64, which may differ from its float32 value in the bands.
    this.nodata = nodata !== null && values instanceof Float32Array ? Math.fround(nodata) : nodata;
  }

  /** Return whether a value means "no observation": it is nodata or NaN. */
  missing(value) {
    return value === this.nodata || value !== value;
  }

  /** Whether the preview has every pixel of the input. */
  get whole() {
    return this.shown.width === this.width && this.shown.height === this.height;
  }

  /** Return the value of a band (from 0) at a pixel of the input, or null if there is no observation. */
  at(band, row, col) {
    const { width, height } = this.shown;
    const [y, x] = [Math.floor((row * height) / this.height), Math.floor((col * width) / this.width)];
    const value = this.bands[band][y * width + x];
    return this.missing(value) ? null : value;
  }
}
