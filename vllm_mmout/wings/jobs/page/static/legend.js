/** The legend of a result: colour, name, share and area of each class. */
import { made } from "./elements.js";
import { nameOf } from "./sources.js";
import { area, areaUnit, count, percent } from "./units.js";

const FEW = 12;

/**
 * Return a bar of the shares and a table of the classes.
 * @param {object[]} classes the field `classes` of a job's output
 * @returns {HTMLElement[]}
 */
export function legend(classes) {
  const rows = classes.length > FEW ? classes.filter(({ pixels }) => pixels) : classes;
  const placed = classes.every(({ area_m2 }) => area_m2 !== null);
  const unit = placed ? areaUnit(classes.map(({ area_m2 }) => area_m2)) : null;
  const head = ["Class", "Share", placed ? `Area, ${unit.name}` : "Pixels"];
  const measure = ({ pixels, area_m2 }) =>
    placed
      ? made("data", { value: area_m2, title: `${count(pixels)} pixels` }, area(area_m2, unit))
      : made("data", { value: pixels }, count(pixels));
  const table = made(
    "table",
    { className: "classes" },
    made("caption", { className: "unseen" }, "Classes of the result"),
    made("thead", {}, made("tr", {}, ...head.map((text) => made("th", { scope: "col" }, text)))),
    made("tbody", {}, ...rows.map((each) => row(each, measure(each)))),
  );
  return [shares(rows), table];
}

/** Return the shares as one bar. It is hidden from screen readers, which read the table. */
function shares(rows) {
  const parts = rows.filter(({ share }) => share > 0).map(({ share, color }) => {
    const part = made("span");
    Object.assign(part.style, { backgroundColor: color, flexGrow: share });
    return part;
  });
  return made("div", { className: "shares", ariaHidden: "true" }, ...parts);
}

function row(each, measure) {
  const swatch = made("span", { className: "swatch" });
  swatch.style.backgroundColor = each.color;
  const name = made("th", { scope: "row" }, swatch, nameOf(each));
  return made("tr", {}, name, made("td", {}, percent(each.share)), made("td", {}, measure));
}
