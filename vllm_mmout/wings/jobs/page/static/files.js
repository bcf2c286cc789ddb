/** Input files that the user drops, chooses or pastes. */
import { byId } from "./elements.js";

/**
 * Call a function whenever the user drops, chooses or pastes files.
 * @param {(files: File[]) => void} onFiles gets one or several files, sorted by name
 * @param {(files: File[]) => void} onAreas gets GeoJSON files that are among them or chosen as the area
 */
export function onFilesGiven(onFiles, onAreas) {
  const give = (list) => {
    const files = [...list].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    const areas = files.filter(({ name }) => /\.geojson$/i.test(name));
    const images = files.filter((file) => !areas.includes(file));
    if (areas.length) onAreas(areas);
    if (images.length) onFiles(images);
  };
  onChosen(byId("files"), ["choose", "choose-other"], give);
  onChosen(byId("area-file"), ["choose-area"], (list) => onAreas([...list]));
  document.addEventListener("paste", (event) => give(event.clipboardData.files));
  dropped(give);
}

function onChosen(field, buttons, take) {
  for (const id of buttons) byId(id).addEventListener("click", () => field.click());
  field.addEventListener("change", () => {
    if (field.files.length) take(field.files);
    field.value = ""; // so that choosing the same file again, after a change, is an event
  });
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
