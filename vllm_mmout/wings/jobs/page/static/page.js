/** Entry point of the page: starts a session and connects it to the page's events. */
import { askJson } from "./api.js";
import { readArea } from "./area.js";
import { byId } from "./elements.js";
import { onFilesGiven } from "./files.js";
import { onKindChosen } from "./input.js";
import { showError } from "./notices.js";
import { Session } from "./session.js";

const session = new Session();

onFilesGiven((files) => session.take(files), (files) => readArea(files).catch(showError));
onKindChosen(() => session.take(session.files));
byId("request").addEventListener("submit", (event) => {
  event.preventDefault();
  session.run();
});
byId("cancel").addEventListener("click", () => session.cancel().catch(showError));
byId("copy").addEventListener("click", () => copy(byId("curl")).catch(showError));

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) session.history.refresh().catch(showError);
});

try {
  const models = await askJson("models");
  byId("model").textContent = models.data[0]?.id ?? "";
  await session.history.refresh();
} catch (error) {
  showError(error);
}

// Browsers offer the clipboard only over https and on localhost. Elsewhere the text is selected, to be copied by hand.
async function copy(element) {
  getSelection().selectAllChildren(element);
  await navigator.clipboard?.writeText(element.textContent);
  byId("copy").textContent = navigator.clipboard ? "Copied" : "Selected";
  byId("copy").addEventListener("blur", () => (byId("copy").textContent = "Copy"), { once: true });
}
