/** The actions of the user: choose an input, run it, open and delete jobs. A new action aborts the current one. */
import { askJson } from "./api.js";
import { commands } from "./curl.js";
import { byId } from "./elements.js";
import { expected, over } from "./frame.js";
import { History } from "./history.js";
import { describe, nameOf, read } from "./input.js";
import { create, ended, follow, remove } from "./job.js";
import { clearError, say, showError } from "./notices.js";
import { fields, pointAt } from "./options.js";
import { hideProgress, showJob, showProgress, showSent } from "./progress.js";
import { Result } from "./result.js";
import { Stage } from "./stage.js";

/** The state of the page: its input, the jobs that it made, and the job that it shows. */
export class Session {
  constructor() {
    this.stage = new Stage();
    this.result = new Result(this.stage);
    this.history = new History({
      onOpen: ({ id }) => this.#during((signal) => this.#reopen(id, signal)),
      onDelete: (job) => this.#delete(job).catch(showError),
      onError: showError,
    });
    /** `files` are those that the page names, `input` is what was read of them, or null. */
    this.files = [];
    this.input = null;
    /** Requests that were made with the current input, by the id of the job. Their results are drawn over it. */
    this.requests = new Map();
    /** `job` is the job that is shown, `running` the job that is polled. */
    this.job = this.running = null;
    this.ending = new AbortController();
  }

  /** Preview and show an input. */
  async take(files) {
    const chosen = document.activeElement === byId("choose"); // this button is hidden afterwards
    await this.#during(async (signal) => {
      const name = nameOf(files);
      showSent(name)(0);
      const input = await read(files, showSent(name), signal).catch((error) => {
        // Several files may be scenes instead of bands, which the user can then choose.
        if (files.length > 1 && !signal.aborted) this.#use({ files, scenes: false, raster: null });
        throw about(name, error);
      });
      this.#use(input);
      say(`${name} is shown`);
    });
    if (chosen) byId(this.input ? "run" : "choose").focus();
  }

  // Without a raster the input could not be read. It is named, but cannot be run.
  #use(input) {
    this.files = input.files;
    this.input = input.raster && input;
    this.requests.clear();
    this.#forget();
    describe(input);
    this.stage.showInput(input.raster);
    byId("run").disabled = !input.raster;
  }

  /** Run a job with the current input. */
  run() {
    return this.#during(async (signal) => {
      const { files } = this.input;
      const options = fields();
      this.#forget();
      this.stage.clearResult();
      const job = await create(files, options, showSent(nameOf(files)), signal);
      this.requests.set(job.id, { names: files.map((file) => file.name), fields: options });
      await this.#open(job, signal);
    });
  }

  /** Cancel the current upload or job. */
  async cancel() {
    this.ending.abort();
    const job = this.running;
    say("Cancelled");
    if (job && !ended(job)) {
      this.#forget();
      this.stage.clearResult();
      await remove(job.id).catch(showError);
    }
    await this.history.refresh();
  }

  async #reopen(id, signal) {
    const job = await askJson(`scenes/${id}`, { signal });
    this.#forget();
    this.stage.clearResult();
    await this.#open(job, signal);
  }

  async #open(job, signal) {
    const request = this.requests.get(job.id) ?? null;
    this.job = job;
    this.history.mark(job.id);
    const show = (now) => {
      this.job = this.running = now;
      showJob(now);
      this.history.update(now);
      byId("curl-part").hidden = false;
      byId("curl").textContent = commands(now, request);
    };
    const options = request && request.fields;
    const last = await follow(job, {
      onJob: show,
      onPreview: (png) => this.#grow(png, options),
      onSilence: (error) => showProgress(`${error.message} Trying again.`),
    }, signal);
    if (last.status === "completed") {
      await this.result.show(last, options);
      return;
    }
    this.stage.clearResult();
    throw new Error(`${last.name}: ${last.error?.message ?? "the job failed"}`);
  }

  #grow(png, options) {
    const { stage } = this;
    const size = options && expected(stage.raster, options);
    return stage.showResult(png, (known) => options && over(stage.raster, options, known), size);
  }

  async #delete(job) {
    if (this.job?.id === job.id) {
      this.ending.abort();
      this.#forget();
      this.stage.clearResult();
      clearError();
    }
    await remove(job.id);
    await this.history.refresh();
    byId("jobs-title").focus();
  }

  /** Abort the current action, but not its job. Then run another action, and show the error if it fails. */
  async #during(action) {
    this.ending.abort();
    this.running = null;
    const ending = (this.ending = new AbortController());
    clearError();
    pointAt(null);
    busy(true);
    try {
      await action(ending.signal);
    } catch (error) {
      if (ending.signal.aborted) return;
      showError(error);
      pointAt(error.param);
      if (error.status === 404) await this.history.refresh().catch(showError);
    } finally {
      if (this.ending === ending) {
        busy(false);
        hideProgress();
      }
    }
  }

  #forget() {
    this.job = null;
    this.history.mark(null);
    this.result.clear();
    byId("curl-part").hidden = true;
  }
}

/** Return an error whose message contains the name of its file. */
function about(name, error) {
  if (error.status && !error.message.includes(name)) error.message = `${name}: ${error.message}`;
  return error;
}

// The buttons Run and Cancel replace each other. If the hidden button had the focus, the visible button gets it.
function busy(on) {
  const [now, then] = on ? [byId("cancel"), byId("run")] : [byId("run"), byId("cancel")];
  const focused = document.activeElement === then;
  now.hidden = false;
  then.hidden = true;
  if (focused) now.focus();
}
