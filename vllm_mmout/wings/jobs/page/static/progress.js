/** The progress bar of an upload or a job. */
import { byId } from "./elements.js";
import { say } from "./notices.js";

const TITLE = document.title;

/** Show the bar with a share from 0 to 1, or moving without a value if the share is null. */
export function showProgress(text, share = null) {
  byId("progress-part").hidden = false;
  if (share === null) byId("progress").removeAttribute("value");
  else byId("progress").value = 100 * share;
  byId("progress-text").textContent = text;
  document.title = `${share === null ? "…" : `${Math.round(100 * share)} %`} ${TITLE}`;
}

/** Return a function that shows the progress of an upload, given the share that is sent. */
export const showSent = (name) => (share) => {
  if (share < 1) showProgress(`Sending ${name}, ${Math.round(100 * share)} %`, share);
  else showProgress(`Reading ${name}`);
};

/** Show the progress of a job. */
export function showJob(job) {
  const { status, tiles, progress } = job;
  if (status === "queued") showProgress("Waiting for other jobs");
  else if (status === "in_progress") {
    showProgress(tiles ? `${tiles.done} of ${tiles.total} tiles` : "Running", tiles ? progress / 100 : null);
  } else hideProgress();
  say({ queued: "Waiting", in_progress: "Running", completed: "Done", failed: "" }[status]);
}

/** Hide the bar. */
export function hideProgress() {
  byId("progress-part").hidden = true;
  document.title = TITLE;
}
