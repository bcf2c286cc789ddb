/** Download of a result under the name of its input and its processor. */
import { made } from "./elements.js";
import { content } from "./job.js";

/** Return title and suffix of an output's format, from the options of the format field, or null if it is unknown. */
export const formatOf = (output) =>
  document.querySelector(`[name="output_format"] option[value="${CSS.escape(output.output_format)}"]`)?.dataset ?? null;

/** Return the file name for an output: the name of the input and of the processor. */
export function nameFor(job, output) {
  const stem = job.name.replace(/^.*[/\\]/, "").replace(/\.[A-Za-z0-9]{1,5}$/, "") || "scene";
  const ending = formatOf(output)?.ending ?? "bin";
  return `${stem}-${output.processor}.${ending}`;
}

/** Fetch an output, with the API key if there is one, and start the browser's download. */
export async function save(job, output) {
  const blob = await content(job.id, { processor: output.processor });
  const link = made("a", { href: URL.createObjectURL(blob), download: nameFor(job, output) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
