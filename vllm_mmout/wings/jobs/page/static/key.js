/** Asks for the API key. It is kept in one variable of this module: a reload forgets it. */
import { byId } from "./elements.js";

let key = null;
let asking = null;

/** The key, or null where none was asked for. */
export const currentKey = () => key;

/**
 * Ask for the key, once for all requests that wait for it.
 * @param {string|null} tried the key that was refused, or null
 * @returns {Promise<boolean>} whether there is another one now
 */
export function askForKey(tried) {
  if (key !== tried) return Promise.resolve(true);
  asking ??= dialog(tried !== null).finally(() => (asking = null));
  return asking;
}

function dialog(refused) {
  const box = byId("key-dialog");
  const field = byId("key");
  byId("key-wrong").textContent = refused ? "The server does not take this key." : "";
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
        byId("key-wrong").textContent = "A key is made of ASCII letters, digits and signs, without spaces.";
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
