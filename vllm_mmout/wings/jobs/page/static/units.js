/** Formatting of numbers, areas, file sizes and times for display. */

const grouped = new Intl.NumberFormat("en");
const rounded = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const AREAS = [
  { name: "km²", square: 1e6, from: 1e7 },
  { name: "ha", square: 1e4, from: 1e4 },
  { name: "m²", square: 1, from: 0 },
];

/** Format a whole number, in groups of three digits. */
export const count = (number) => grouped.format(number);

/** Format a share from 0 to 1 as a percentage. */
export const percent = (share) => `${share > 0 && share < 0.001 ? "< 0.1" : (100 * share).toFixed(1)} %`;

/** Return the unit for a list of areas in square metres, which the largest area determines. */
export const areaUnit = (areas) => AREAS.find(({ from }) => Math.max(0, ...areas) >= from);

/** Format an area in a unit from `areaUnit`, without the name of the unit. */
export const area = (squareMetres, unit) => rounded.format(squareMetres / unit.square);

/** Format the size of a file. */
export function bytes(number) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(number, 1)) / 3), units.length - 1);
  return `${power ? (number / 1000 ** power).toPrecision(3) : number}\u00a0${units[power]}`;
}

/** Format the value of a pixel. null means "no observation". */
export const value = (number) => (number === null ? "no data" : String(Number(number.toPrecision(6))));

/** Format Unix time in seconds as the time of day, with the date if it is not today. */
export function clock(seconds) {
  const date = new Date(seconds * 1000);
  const today = date.toDateString() === new Date().toDateString();
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}
