/** Requests to the server of this page, with the API key if the server requires one. */
import { askForKey, currentKey } from "./key.js";

const BASE = new URL("v1/", document.baseURI);

/** Error with the server's message, the HTTP status (0 if there was no response) and the name of the wrong field. */
export class ApiError extends Error {
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** Return the full URL of a route, such as "scenes". */
export const address = (path) => new URL(path, BASE).href;

/**
 * Send a request to a route. Throws an ApiError if it fails.
 * @param {string} path such as "scenes/ID"
 * @param {RequestInit} options
 * @returns {Promise<Response>}
 */
export async function ask(path, options = {}) {
  const answer = await withKey(async (headers) => {
    try {
      return await fetch(address(path), { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server does not respond.");
    }
  });
  if (!answer.ok) throw failure(answer.status, await answer.text());
  return answer;
}

/** Send a request to a route and return the parsed JSON of the response. */
export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

/**
 * Post a form and report the progress of the upload.
 * @param {string} path
 * @param {FormData} form
 * @param {(share: number) => void} onProgress gets the share that is sent, from 0 to 1
 * @param {AbortSignal} signal aborts the upload
 * @returns {Promise<object>} the parsed JSON of the response
 */
export async function send(path, form, onProgress, signal) {
  const answer = await withKey((headers) => post(address(path), form, headers, onProgress, signal));
  if (answer.status >= 400) throw failure(answer.status, answer.responseText, answer.getResponseHeader("Retry-After"));
  return JSON.parse(answer.responseText);
}

async function withKey(attempt) {
  for (;;) {
    const key = currentKey();
    const answer = await attempt(key === null ? {} : { Authorization: `Bearer ${key}` });
    if (answer.status !== 401) return answer;
    if (!(await askForKey(key))) throw new ApiError(401, "The server requires an API key. Enter it to continue.");
  }
}

// XMLHttpRequest, because fetch() does not report the progress of an upload.
function post(url, form, headers, onProgress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onload = () => resolve(request);
    request.onerror = () => reject(new ApiError(0, "The server does not respond, or has closed the upload."));
    request.onabort = () => reject(new DOMException("ended", "AbortError"));
    if (signal.aborted) return request.onabort();
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

function failure(status, text, wait = null) {
  let message = `The server answered with status ${status}.`;
  let param = null;
  try {
    const { error, detail } = JSON.parse(text);
    if (typeof error === "string") message = error;
    else if (error?.message) ({ message, param = null } = error);
    else if (detail) message = typeof detail === "string" ? detail : JSON.stringify(detail);
  } catch {
    // Not JSON, for example a proxy's error page. The message then has only the status.
  }
  if (wait) message += ` Try again in ${wait} s.`;
  return new ApiError(status, message, param);
}
