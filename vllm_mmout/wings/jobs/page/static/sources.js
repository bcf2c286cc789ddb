/**
 * Sources of the readout. `now(cell)` describes a pixel at once, and `later(cell, signal)` asks the server, or is null.
 * Both return {value, colour, x, y, crs} or null. After the promise `ready` resolves, `now` may also know coordinates.
 */
import { askJson } from "./api.js";
import { queryOf } from "./job.js";
import { Place } from "./place.js";
import { value } from "./units.js";

/** Return the source of an input: the values of the bands that are shown, at the resolution of the preview. */
export function ofInput(raster, picture) {
  const now = ({ row, col }) => {
    const found = picture.bands.map((band) => raster.at(band, row, col));
    const text = found.every((each) => each === null) ? "no data" : found.map((each) => value(each)).join(" · ");
    return { value: raster.whole ? text : `≈ ${text}` };
  };
  return { now, later: null };
}

/**
 * Return the source of a result: the class by its colour if the preview has every pixel, else the server's values.
 * @param {string} id id of the job
 * @param {object} output the output of the job
 * @param {import("./overlay.js").Overlay} overlay shows the output's preview
 * @param {[number, number]} size columns and rows of the result
 */
export function ofResult(id, output, overlay, size) {
  const pixel = (row, col, signal) =>
    askJson(`scenes/${id}/pixel?row=${row}&col=${col}&${queryOf(output)}`, { signal });
  const colours = coloursOf(output.classes ?? []);
  const whole = overlay.size[0] === size[0] && overlay.size[1] === size[1];
  const traced = output.media_type === "application/geo+json";
  if (output.size === null && !traced) return { now: () => null, later: null }; // a drawing: its colours are no values
  if (colours && whole) return byColour(overlay, colours, output.size && Place.learn(pixel, size));
  if (output.size === null) return { now: () => null, later: null };
  return { now: () => null, later: async ({ row, col }, signal) => told(await pixel(row, col, signal), output) };
}

function byColour(overlay, colours, learning) {
  let place = null;
  const ready = learning?.then((learnt) => (place = learnt), () => {}); // after a failure there are no coordinates
  const now = (cell) => {
    const [red, green, blue, alpha] = overlay.colour(cell.row, cell.col);
    const found = alpha ? colours.get((red << 16) | (green << 8) | blue) : null;
    return { value: alpha ? found?.name : "no data", colour: found?.color, ...place?.at(cell) };
  };
  return { now, later: null, ready };
}

/** Return a map from colours (numbers 0xrrggbb) to classes, or null if two classes have the same colour. */
function coloursOf(classes) {
  const named = classes.map((each) => [parseInt(each.color.slice(1), 16), { ...each, name: nameOf(each) }]);
  const colours = new Map(named);
  return classes.length && colours.size === classes.length ? colours : null;
}

/** Return the name of a class, or "class ID" if it has no name. */
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
