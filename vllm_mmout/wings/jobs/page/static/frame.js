/** The position of a result on its input. The unit of map coordinates is a pixel of the input, or of a lone result. */

/** A rectangle of the map with a grid of pixels. */
export class Frame {
  /**
   * @param {[number, number]} world width and height of the map
   * @param {{x: number, y: number, width: number, height: number}} rect position of the grid on the map
   * @param {[number, number]} size columns and rows of the grid
   */
  constructor(world, rect, size) {
    Object.assign(this, { world, rect, size });
  }

  /** Return the pixel {row, col} at a point of the map, or null if the point is outside the grid. */
  cell(x, y) {
    const { rect, size } = this;
    const col = Math.floor(((x - rect.x) / rect.width) * size[0]);
    const row = Math.floor(((y - rect.y) / rect.height) * size[1]);
    return col >= 0 && row >= 0 && col < size[0] && row < size[1] ? { row, col } : null;
  }

  /** Return the rectangle of a pixel on the map: its top left corner, width and height. */
  place({ row, col }) {
    const { rect, size } = this;
    const [width, height] = [rect.width / size[0], rect.height / size[1]];
    return { x: rect.x + col * width, y: rect.y + row * height, width, height };
  }
}

/** Return the frame of a grid that fills the map. */
export const whole = (width, height) => new Frame([width, height], { x: 0, y: 0, width, height }, [width, height]);

/** Return the window of a request as [row, col, height, width], or null if it has no valid window. */
function windowOf(fields) {
  const numbers = (fields.window?.match(/-?\d+/g) ?? []).map(Number);
  return numbers.length === 4 && numbers[2] > 0 && numbers[3] > 0 ? numbers : null;
}

/** Return whether a result does not lie on the input: it is a mosaic, or cut to a bounding box or an area. */
const elsewhere = (fields) => Boolean(fields.bbox || fields.aoi || fields.mosaic);

/** Return the size [columns, rows] of a result whose pixels are the input's, or null if it does not lie on the input. */
export function expected(input, fields) {
  const window = windowOf(fields);
  if (window) return [window[3], window[2]];
  return elsewhere(fields) ? null : [input.width, input.height];
}

/**
 * Return the frame of a result on its input, or null if its position is not known.
 * @param {{width: number, height: number}} input
 * @param {object} fields form fields of the request, by name
 * @param {[number, number]} size columns and rows of the result
 */
export function over(input, fields, size) {
  const world = [input.width, input.height];
  if (elsewhere(fields)) return null;
  const window = windowOf(fields);
  if (window) {
    const [row, col, height, width] = window;
    return new Frame(world, { x: col, y: row, width, height }, size);
  }
  const alike = Math.abs(size[0] * world[1] - size[1] * world[0]) <= 2 * Math.max(...size, ...world);
  return alike ? new Frame(world, { x: 0, y: 0, width: world[0], height: world[1] }, size) : null;
}
