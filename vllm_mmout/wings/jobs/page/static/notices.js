/** Messages of the page: errors, which stay until they are dismissed, and status messages for screen readers. */
import { byId } from "./elements.js";

/** Show an error. Ignore the AbortError of a request that the user cancelled. */
export function showError(error) {
  if (error?.name === "AbortError") return;
  byId("notice").hidden = false;
  byId("error").textContent = error?.message ?? String(error);
}

/** Remove the error. */
export function clearError() {
  byId("notice").hidden = true;
  byId("error").textContent = "";
}

/** Announce a status message to screen readers. */
export function say(text) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
}

byId("dismiss").addEventListener("click", clearError);
