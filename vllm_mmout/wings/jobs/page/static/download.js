/** Saving a result under a name that says what it is. */
import { made } from "./elements.js";
import { content } from "./job.js";

/** What the server's table says of an output's format: its title and the ending of names; null for one of others. */
export const formatOf = (output) =>
  document.querySelector(`[name="output_format"] option[value="${CSS.escape(output.output_format)}"]`)?.dataset ?? null;

/** The name of a file for an output: that of the input, and what made it. */
export function nameFor(job, output) {
  const stem = job.name.replace(/^.*[/\\]/, "").replace(/\.[A-Za-z0-9]{1,5}$/, "") || "scene";
  const ending = formatOf(output)?.ending ?? "bin";
  return `${stem}-${output.processor}.${ending}`;
}

/** Fetch an output, with the key where there is one, and hand it to the browser to be saved. */
export async function save(job, output) {
  const blob = await content(job.id, { processor: output.processor });
  const link = made("a", { href: URL.createObjectURL(blob), download: nameFor(job, output) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
