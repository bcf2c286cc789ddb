/** Asks for the API key. The key is kept only in a variable of this module, so that a reload forgets it. */
import { byId } from "./elements.js";

let key = null;
let asking = null;

/** Return the key, or null if the server has not asked for one. */
export const currentKey = () => key;

/**
 * Ask the user for the key. Requests that wait for it share one dialog.
 * @param {string|null} tried the key that the server refused, or null
 * @returns {Promise<boolean>} whether there is now another key to try
 */
export function askForKey(tried) {
  if (key !== tried) return Promise.resolve(true);
  asking ??= dialog(tried !== null).finally(() => (asking = null));
  return asking;
}

function dialog(refused) {
  const box = byId("key-dialog");
  const field = byId("key");
  byId("key-wrong").textContent = refused ? "The server does not accept this key." : "";
  field.value = "";
  box.showModal();
  field.focus();
  return new Promise((resolve) => {
    const done = new AbortController();
    const end = (given) => {
      done.abort();
      field.value = "";
      box.close();
      resolve(given);
    };
    const on = (id, event, listener) => byId(id).addEventListener(event, listener, { signal: done.signal });
    on("key-form", "submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (!/^[\x21-\x7e]+$/.test(text)) {
        byId("key-wrong").textContent = "A key consists of ASCII letters, digits and symbols, without spaces.";
        return;
      }
      key = text;
      end(true);
    });
    on("key-cancel", "click", () => end(false));
    on("key-dialog", "cancel", (event) => {
      event.preventDefault();
      end(false);
    });
  });
}
