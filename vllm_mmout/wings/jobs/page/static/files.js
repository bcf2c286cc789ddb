/** Input files that the user drops, chooses or pastes. */
import { byId } from "./elements.js";

/**
 * Call a function whenever the user drops, chooses or pastes files.
 * @param {(files: File[]) => void} onFiles gets one or several files, sorted by name
 */
export function onFilesGiven(onFiles) {
  const give = (list) => {
    const files = [...list].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    if (files.length) onFiles(files);
  };
  const field = byId("files");
  for (const id of ["choose", "choose-other"]) byId(id).addEventListener("click", () => field.click());
  field.addEventListener("change", () => {
    give(field.files);
    field.value = ""; // so that choosing the same file again, after a change, is an event
  });
  document.addEventListener("paste", (event) => give(event.clipboardData.files));
  dropped(give);
}

function dropped(give) {
  const mark = (on) => document.body.classList.toggle("dropping", on);
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    mark(event.dataTransfer.types.includes("Files"));
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && mark(false));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(false);
    give(event.dataTransfer.files);
  });
}
