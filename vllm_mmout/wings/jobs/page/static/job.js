/** Jobs: made, followed to their end, cancelled. */
import { ApiError, ask, askJson, send } from "./api.js";
import { body } from "./options.js";

const STATE_MS = 500;
const PREVIEW_MS = 1000;
const AGAIN_MS = 2000;

/** Whether nothing more will happen to a job. */
export const ended = (job) => job.status === "completed" || job.status === "failed";

/** Make a job of files; `onSent` is told which share of them is sent. */
export const create = (files, options, onSent, signal) => send("scenes", body(files, options), onSent, signal);

/** Cancel a job, or remove what is left of it. */
export const remove = (id) => ask(`scenes/${id}`, { method: "DELETE" });

/** Bytes of a job. */
export async function content(id, { variant = "result", processor = null, signal = undefined } = {}) {
  const query = new URLSearchParams({ variant, ...(processor && { processor }) });
  return (await ask(`scenes/${id}/content?${query}`, { signal })).blob();
}

/** The picture of a job, also of one that is not finished; null while, or where, it has none. */
export async function preview(id, options) {
  try {
    return await content(id, { ...options, variant: "preview" });
  } catch (error) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 409)) return null;
    throw error;
  }
}

/**
 * Follow a job until it has ended.
 * @param {object} job
 * @param {object} listener `onJob(job)` at each change, `onPreview(png)` while it grows, `onSilence()` when the server
 *     does not answer
 * @param {AbortSignal} signal stops following; the job goes on
 * @returns {Promise<object>} the job at its end
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
