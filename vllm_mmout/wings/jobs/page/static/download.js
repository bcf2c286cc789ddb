/** Download of a result under the name of its input and its processor. */
import { made } from "./elements.js";
import { content, figure } from "./job.js";

/** Limit of the server, as MOST_PIXELS of result_figure.py. */
const FIGURE_PIXELS = 2 ** 26;

/** Return title and suffix of an output's format, from the options of the format field, or null if it is unknown. */
export const formatOf = (output) =>
  document.querySelector(`[name="output_format"] option[value="${CSS.escape(output.output_format)}"]`)?.dataset ?? null;

/** Return the file name for an output: its day, or the name of the input, and the name of the processor. */
export const nameFor = (job, output) => `${stem(job, output)}.${formatOf(output)?.ending ?? "bin"}`;

/** Fetch an output, with the API key if there is one, and start the browser's download. */
export const save = async (job, output) =>
  download(await content(job.id, { output }), nameFor(job, output));

/** Return whether the server draws a figure of an output: of rasters that it has as GeoTIFF, up to a size. */
export function hasFigure(output) {
  const [width, height] = output.size?.split("x").map(Number) ?? [0, 0];
  return output.output_format === "tiff" && width * height > 0 && width * height <= FIGURE_PIXELS;
}

/** Fetch the figure of an output for reports, and start the browser's download. */
export const saveFigure = async (job, output) =>
  download(await figure(job.id, output), `${stem(job, output)}-figure.png`);

function stem(job, output) {
  const input = job.name.replace(/^.*[/\\]/, "").replace(/\.[A-Za-z0-9]{1,5}$/, "") || "scene";
  return `${output.day ?? input}-${output.processor}`;
}

function download(blob, name) {
  const link = made("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
