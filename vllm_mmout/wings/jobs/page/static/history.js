/** The list of this server's jobs, newest first. */
import { askJson } from "./api.js";
import { byId, made } from "./elements.js";
import { clock } from "./units.js";

const PAGE = 20;
const MOST = 100;
const STATES = { queued: "waiting", in_progress: "running", completed: "done", failed: "failed" };

/** The list of jobs, with buttons to open and delete each job. */
export class History {
  /**
   * @param {object} listeners `onOpen(job)` and `onDelete(job)` for the buttons, `onError(error)` for failed requests
   *     of the list itself
   */
  constructor({ onOpen, onDelete, onError }) {
    Object.assign(this, { onOpen, onDelete, onError, jobs: [], current: null });
    byId("more").addEventListener("click", () => this.#more().catch(onError));
  }

  /** Reload the list at its current length. */
  async refresh() {
    const limit = Math.min(Math.max(this.jobs.length, PAGE), MOST);
    const list = await askJson(`scenes?limit=${limit}&order=desc`);
    this.jobs = list.data;
    this.#draw(list.has_more);
  }

  /** Update a job in the list, or add it at the top. */
  update(job) {
    const index = this.jobs.findIndex(({ id }) => id === job.id);
    if (index < 0) {
      this.jobs.unshift(job);
      this.#draw();
      return;
    }
    this.jobs[index] = job;
    setState(byId("jobs").children[index].querySelector(".state"), job);
  }

  /** Mark the job that is shown. */
  mark(id) {
    this.current = id;
    this.#draw();
  }

  async #more() {
    const last = this.jobs.at(-1);
    const list = await askJson(`scenes?limit=${PAGE}&order=desc&after=${last.id}`);
    this.jobs.push(...list.data);
    this.#draw(list.has_more);
  }

  #draw(more = !byId("more").hidden) {
    const focused = document.activeElement.closest("#jobs button");
    const held = focused && { id: focused.closest("li").dataset.id, kind: focused.classList[0] };
    byId("jobs").replaceChildren(...this.jobs.map((job) => this.#item(job)));
    byId("no-jobs").hidden = this.jobs.length > 0;
    byId("more").hidden = !more;
    if (held) byId("jobs").querySelector(`li[data-id="${held.id}"] .${held.kind}`)?.focus();
  }

  #item(job) {
    const time = made("time", { dateTime: new Date(job.created_at * 1000).toISOString() }, clock(job.created_at));
    const open = made(
      "button",
      { type: "button", className: "open" },
      made("span", { className: "name" }, job.name),
      setState(made("span"), job),
      time,
    );
    open.addEventListener("click", () => this.onOpen(job));
    if (job.id === this.current) open.setAttribute("aria-current", "true");
    const item = made("li", {}, open, this.#deleting(job));
    item.dataset.id = job.id;
    return item;
  }

  // Only a second press deletes the job, so that an accidental press does not.
  #deleting(job) {
    const button = made("button", { type: "button", className: "delete", ariaLabel: `Delete ${job.name}` }, "×");
    const ask = (sure) => {
      button.classList.toggle("sure", sure);
      button.textContent = sure ? "Delete?" : "×";
      button.ariaLabel = sure ? `Really delete ${job.name}?` : `Delete ${job.name}`;
    };
    button.addEventListener("blur", () => ask(false));
    button.addEventListener("click", () => (button.classList.contains("sure") ? this.onDelete(job) : ask(true)));
    return button;
  }
}

function setState(element, { status, progress }) {
  element.className = `state ${status}`;
  element.textContent = status === "in_progress" ? `${STATES[status]}, ${progress} %` : STATES[status];
  return element;
}
