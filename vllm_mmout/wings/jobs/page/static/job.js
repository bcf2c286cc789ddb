/** Functions that create jobs, poll them until they end, fetch their results and cancel them. */
import { ApiError, address, ask, askJson, send } from "./api.js";
import { body } from "./options.js";

const STATE_MS = 500;
const PREVIEW_MS = 1000;
const AGAIN_MS = 2000;

/** Return whether a job has completed or failed. */
export const ended = (job) => job.status === "completed" || job.status === "failed";

/** Create a job from files. `onSent` is called with the share of the upload that is sent, from 0 to 1. */
export const create = (files, options, onSent, signal) => send("scenes", body(files, options), onSent, signal);

/** Cancel a running job, or delete a job that has ended. */
export const remove = (id) => ask(`scenes/${id}`, { method: "DELETE" });

/** Return the query parameters that choose an output among the results of its job. */
export const queryOf = ({ processor, day }) => new URLSearchParams({ processor, ...(day && { day }) }).toString();

/** Return the name of an output among the results of its job. */
export const labelOf = ({ processor, day }) => (day ? `${processor}, ${day}` : processor);

/** Fetch an output of a job, by default the first, or its preview as a Blob. */
export async function content(id, { variant = "result", output = null, signal = undefined } = {}) {
  const query = [`variant=${variant}`, ...(output ? [queryOf(output)] : [])].join("&");
  return (await ask(`scenes/${id}/content?${query}`, { signal })).blob();
}

/** Fetch the figure of an output as a Blob. */
export const figure = async (id, output) => (await ask(`scenes/${id}/figure?${queryOf(output)}`)).blob();

/** Fetch the preview of a finished or running job. Returns null if the job has no preview, or none yet. */
export async function preview(id, options) {
  try {
    return await content(id, { ...options, variant: "preview" });
  } catch (error) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 409)) return null;
    throw error;
  }
}

/** Return the address of the map tiles of a result, or null if the server has none for it. */
export async function mapTiles(output) {
  if (output.output_format !== "tiff") return null;
  const path = `images/results/${output.stored}/tilejson.json`;
  try {
    await ask(path);
    return address(path);
  } catch (error) {
    if (error instanceof ApiError) return null;
    throw error;
  }
}

/**
 * Poll a job until it ends.
 * @param {object} job
 * @param {object} listener `onJob(job)` gets each description of the job, `onPreview(png)` the previews of the running
 *     job, and `onSilence(error)` is called when the server does not respond
 * @param {AbortSignal} signal stops the polling, not the job
 * @returns {Promise<object>} the last description of the job
 */
export async function follow(job, { onJob, onPreview, onSilence }, signal) {
  let due = 0;
  for (let now = job; ; ) {
    onJob(now);
    if (ended(now)) return now;
    await pause(STATE_MS, signal);
    try {
      now = await askJson(`scenes/${job.id}`, { signal });
      if (now.status === "in_progress" && now.tiles?.done && performance.now() >= due) {
        const png = await preview(job.id, { signal });
        if (png) {
          due = performance.now() + PREVIEW_MS;
          await onPreview(png);
        }
      }
    } catch (error) {
      if (error.status !== 0) throw error;
      onSilence(error);
      await pause(AGAIN_MS, signal);
    }
  }
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("ended", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}
