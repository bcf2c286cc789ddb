/** Coordinates of pixels, computed from three corner pixels, because they are linear in row and column. */

/** Transform from row and column to x and y. */
export class Place {
  /**
   * Ask for three corner pixels and compute the transform. Returns null if the raster has no coordinates.
   * @param {(row: number, col: number) => Promise<object>} pixel asks the server for a pixel
   * @param {[number, number]} size columns and rows
   */
  static async learn(pixel, [cols, rows]) {
    const corners = [[0, 0], [0, cols - 1], [rows - 1, 0]];
    const [first, right, down] = await Promise.all(corners.map(([row, col]) => pixel(row, col)));
    return [first, right, down].some(({ x, y }) => x === null || y === null || x === undefined)
      ? null
      : new Place(first, right, down, Math.max(cols - 1, 1), Math.max(rows - 1, 1));
  }

  constructor(first, right, down, cols, rows) {
    this.origin = [first.x, first.y];
    this.perCol = [(right.x - first.x) / cols, (right.y - first.y) / cols];
    this.perRow = [(down.x - first.x) / rows, (down.y - first.y) / rows];
    this.crs = first.crs;
    const side = Math.max(Math.hypot(...this.perCol), Math.hypot(...this.perRow));
    this.digits = side > 0 ? Math.min(Math.max(Math.ceil(1 - Math.log10(side)), 0), 10) : 3;
  }

  /** Return the coordinates of a pixel's centre, rounded to a tenth of a pixel or finer. */
  at({ row, col }) {
    const [x, y] = [0, 1].map((axis) => this.origin[axis] + col * this.perCol[axis] + row * this.perRow[axis]);
    return { x: x.toFixed(this.digits), y: y.toFixed(this.digits), crs: this.crs };
  }
}
