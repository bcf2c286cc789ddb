/** Display of structured results: a table if the data consists of rows, else the JSON or text. */
import { made } from "./elements.js";

const ROWS = 100;
const CHARACTERS = 20_000;

/**
 * Return an element that shows data.
 * @param {any} data a parsed JSON value, or a text
 * @returns {HTMLElement}
 */
export function structured(data) {
  const rows = rowsOf(data);
  if (rows?.length) return table(rows);
  const text = typeof data === "string" ? data : JSON.stringify(data, null, 2);
  const shown = text.length > CHARACTERS ? `${text.slice(0, CHARACTERS)}\n… the rest is in the saved file` : text;
  return made("pre", { tabIndex: 0 }, shown);
}

function rowsOf(data) {
  if (data?.type === "FeatureCollection") return data.features.map(({ properties }) => properties ?? {});
  if (Array.isArray(data)) return data.every(isRow) ? data : null;
  const lists = Object.values(data ?? {}).filter((each) => Array.isArray(each) && each.length && each.every(isRow));
  return lists.length === 1 ? lists[0] : null;
}

const isRow = (each) => each !== null && typeof each === "object" && !Array.isArray(each);

function table(rows) {
  const names = [...new Set(rows.slice(0, ROWS).flatMap(Object.keys))];
  const cells = (each) => names.map((name) => made("td", {}, text(each[name])));
  const left = rows.length - ROWS;
  return made(
    "div",
    { className: "scrolled", tabIndex: 0 },
    made(
      "table",
      {},
      made("thead", {}, made("tr", {}, ...names.map((name) => made("th", { scope: "col" }, name)))),
      made("tbody", {}, ...rows.slice(0, ROWS).map((each) => made("tr", {}, ...cells(each)))),
    ),
    left > 0 ? made("p", { className: "muted" }, `${left} more rows are in the saved file.`) : "",
  );
}

function text(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return String(Number(value.toPrecision(7)));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
