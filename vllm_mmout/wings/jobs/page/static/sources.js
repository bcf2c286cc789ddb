/**
 * What the readout can say of a pixel: `now`, at once, and `later`, by asking the server.
 * Either gives {value, colour, x, y, crs} or null. Where `ready` resolves, `now` knows more than before.
 */
import { askJson } from "./api.js";
import { Place } from "./place.js";
import { value } from "./units.js";

/** Of an input: the bands that are shown, as far as they are here. */
export function ofInput(raster, picture) {
  const now = ({ row, col }) => {
    const found = picture.bands.map((band) => raster.at(band, row, col));
    const text = found.every((each) => each === null) ? "no data" : found.map((each) => value(each)).join(" · ");
    return { value: raster.whole ? text : `≈ ${text}` };
  };
  return { now, later: null };
}

/**
 * Of a result: class by colour where the preview has every pixel, else what the server says of the pixel.
 * @param {string} id of the job
 * @param {object} output of the job
 * @param {import("./overlay.js").Overlay} overlay shows the output's preview
 * @param {[number, number]} size of the result
 */
export function ofResult(id, output, overlay, size) {
  const query = `processor=${encodeURIComponent(output.processor)}`;
  const pixel = (row, col, signal) => askJson(`scenes/${id}/pixel?row=${row}&col=${col}&${query}`, { signal });
  const colours = coloursOf(output.classes ?? []);
  const whole = overlay.size[0] === size[0] && overlay.size[1] === size[1];
  const traced = output.media_type === "application/geo+json";
  if (output.size === null && !traced) return { now: () => null, later: null }; // drawn, with colours of its own
  if (colours && whole) return byColour(overlay, colours, output.size && Place.learn(pixel, size));
  if (output.size === null) return { now: () => null, later: null };
  return { now: () => null, later: async ({ row, col }, signal) => told(await pixel(row, col, signal), output) };
}

function byColour(overlay, colours, learning) {
  let place = null;
  const ready = learning?.then((learnt) => (place = learnt), () => {}); // without a place there are no coordinates
  const now = (cell) => {
    const [red, green, blue, alpha] = overlay.colour(cell.row, cell.col);
    const found = alpha ? colours.get((red << 16) | (green << 8) | blue) : null;
    return { value: alpha ? found?.name : "no data", colour: found?.color, ...place?.at(cell) };
  };
  return { now, later: null, ready };
}

/** Classes by colour, as a number; null where colours do not tell them apart. */
function coloursOf(classes) {
  const named = classes.map((each) => [parseInt(each.color.slice(1), 16), { ...each, name: nameOf(each) }]);
  const colours = new Map(named);
  return classes.length && colours.size === classes.length ? colours : null;
}

/** What a class is called. */
export const nameOf = ({ id, name }) => name ?? `class ${id}`;

function told(answer, { classes }) {
  const known = classes?.find(({ id }) => id === answer.class?.id);
  const rounded = (number) => (number === null ? undefined : String(Number(number.toFixed(6))));
  return { value: inWords(answer), colour: known?.color, x: rounded(answer.x), y: rounded(answer.y), crs: answer.crs };
}

function inWords({ values, bands, class: found }) {
  if (found) return nameOf(found);
  if (values.every((each) => each === null)) return "no data";
  const named = (each, band) => (bands[band] ? `${bands[band]} ${value(each)}` : value(each));
  return values.length > 1 ? values.map(named).join(", ") : value(values[0]);
}
