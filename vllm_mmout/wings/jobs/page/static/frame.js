/** Where the result lies over the input, in the coordinates of the map: pixels of what is shown. */

/** A rectangle of the map that has a grid of pixels. */
export class Frame {
  /**
   * @param {[number, number]} world width and height of the map
   * @param {{x: number, y: number, width: number, height: number}} rect of the grid
   * @param {[number, number]} size columns and rows of the grid
   */
  constructor(world, rect, size) {
    Object.assign(this, { world, rect, size });
  }

  /** The pixel {row, col} at a place of the map, or null outside. */
  cell(x, y) {
    const { rect, size } = this;
    const col = Math.floor(((x - rect.x) / rect.width) * size[0]);
    const row = Math.floor(((y - rect.y) / rect.height) * size[1]);
    return col >= 0 && row >= 0 && col < size[0] && row < size[1] ? { row, col } : null;
  }

  /** The place of a pixel: its corner, width and height. */
  place({ row, col }) {
    const { rect, size } = this;
    const [width, height] = [rect.width / size[0], rect.height / size[1]];
    return { x: rect.x + col * width, y: rect.y + row * height, width, height };
  }
}

/** The frame of a grid that is the map. */
export const whole = (width, height) => new Frame([width, height], { x: 0, y: 0, width, height }, [width, height]);

/** The part of the input that a request names by its window: [row, col, height, width], or null. */
function windowOf(fields) {
  const numbers = (fields.window?.match(/-?\d+/g) ?? []).map(Number);
  return numbers.length === 4 && numbers[2] > 0 && numbers[3] > 0 ? numbers : null;
}

/** The size of a result that has the input's pixels, [columns, rows]; null where only the result tells it. */
export function expected(input, fields) {
  const window = windowOf(fields);
  if (window) return [window[3], window[2]];
  return fields.bbox ? null : [input.width, input.height];
}

/**
 * The frame of a result over its input, or null where it is not known how one lies on the other.
 * @param {{width: number, height: number}} input
 * @param {object} fields of the request
 * @param {[number, number]} size of the result
 */
export function over(input, fields, size) {
  const world = [input.width, input.height];
  if (fields.bbox) return null;
  const window = windowOf(fields);
  if (window) {
    const [row, col, height, width] = window;
    return new Frame(world, { x: col, y: row, width, height }, size);
  }
  const alike = Math.abs(size[0] * world[1] - size[1] * world[0]) <= 2 * Math.max(...size, ...world);
  return alike ? new Frame(world, { x: 0, y: 0, width: world[0], height: world[1] }, size) : null;
}
