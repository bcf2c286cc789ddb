/** What the page says in words: errors, which stay until they are dismissed, and how things go, for screen readers. */
import { byId } from "./elements.js";

/** Show an error; one that was only cut off by the user says nothing. */
export function showError(error) {
  if (error?.name === "AbortError") return;
  byId("notice").hidden = false;
  byId("error").textContent = error?.message ?? String(error);
}

/** Take the error away. */
export function clearError() {
  byId("notice").hidden = true;
  byId("error").textContent = "";
}

/** Tell a screen reader how things go. */
export function say(text) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
}

byId("dismiss").addEventListener("click", clearError);
