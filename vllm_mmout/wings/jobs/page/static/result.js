/** The result of a job: its preview, its legend, its data and the download of its file. */
import { byId, made } from "./elements.js";
import { over } from "./frame.js";
import { content, labelOf, mapTiles, preview } from "./job.js";
import { legend } from "./legend.js";
import { showError } from "./notices.js";
import { ofResult } from "./sources.js";
import { structured } from "./structured.js";
import { bytes, clock } from "./units.js";
import { formatOf, hasFigure, nameFor, save, saveFigure } from "./download.js";

const READ_BYTES = 4_000_000;

/** The part of the page that shows a completed job. */
export class Result {
  /** @param {import("./stage.js").Stage} stage */
  constructor(stage) {
    this.stage = stage;
    this.job = null;
    this.which = byId("which");
    this.which.addEventListener("change", () => this.#output().catch(showError));
    byId("download").addEventListener("click", () => this.#save(byId("download"), save));
    byId("figure").addEventListener("click", () => this.#save(byId("figure"), saveFigure));
    byId("tiles").addEventListener("focus", ({ target }) => target.select());
  }

  /** Hide the result. */
  clear() {
    this.job = null;
    byId("result-part").hidden = true;
  }

  /**
   * Show a completed job.
   * @param {object} job
   * @param {object|null} fields form fields of the request, or null if the map does not show the job's input
   */
  async show(job, fields) {
    Object.assign(this, { job, fields });
    this.which.replaceChildren(...job.outputs.map((output, i) => made("option", { value: i }, labelOf(output))));
    byId("which-part").hidden = job.outputs.length < 2;
    await this.#output();
    if (this.job === job) byId("result-part").hidden = false;
  }

  async #output() {
    const { job, fields, stage } = this;
    const output = job.outputs[Number(this.which.value)];
    const png = await preview(job.id, { output });
    const [data, tiles] = await Promise.all([this.#data(job, output), mapTiles(output)]);
    if (job !== this.job) return;
    byId("tiles-part").hidden = tiles === null;
    byId("tiles").value = tiles ?? "";
    byId("result-facts").textContent = facts(job, output, fields !== null);
    byId("download").title = nameFor(job, output);
    byId("figure").hidden = !hasFigure(output);
    byId("legend").replaceChildren(...(output.classes?.length ? legend(output.classes) : []));
    byId("structured").replaceChildren(...(data === null ? [] : [structured(data)]));
    if (png === null) {
      stage.clearResult();
      return;
    }
    const size = output.size?.split("x").map(Number) ?? null;
    const framed = (known) => fields && over(stage.raster, fields, known);
    if (!(await stage.showResult(png, framed, size))) return;
    stage.readout.use(ofResult(job.id, output, stage.overlay, size ?? stage.overlay.size));
  }

  async #data(job, output) {
    const json = /json/.test(output.media_type);
    const text = output.media_type.startsWith("text/") && !output.classes;
    if (!(json || text) || output.bytes > READ_BYTES) return null;
    const read = await (await content(job.id, { output })).text();
    return json ? JSON.parse(read) : read;
  }

  async #save(button, fetchAndSave) {
    button.disabled = true;
    try {
      await fetchAndSave(this.job, this.job.outputs[Number(this.which.value)]);
    } catch (error) {
      showError(error);
    } finally {
      button.disabled = false;
      button.focus();
    }
  }
}

/** Return a line about a result: size, format, run time and expiry. `own`: the input of the job is on the page. */
function facts(job, output, own) {
  const took = job.completed_at - job.started_at;
  return [
    ...(own ? [] : [job.name]),
    ...(output.size ? [output.size.replace("x", " × ")] : []),
    `${formatOf(output)?.title ?? output.output_format}, ${bytes(output.bytes)}`,
    took < 1 ? "under 1 s" : `${took} s`,
    ...(job.expires_at ? [`kept until ${clock(job.expires_at)}`.replaceAll(" ", "\u00a0")] : []),
  ].join(" · ");
}
