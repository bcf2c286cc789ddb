/** The field of the area of interest, into which GeoJSON files are read. */
import { byId } from "./elements.js";
import { bytes } from "./units.js";

/** The server takes 2^20 characters of up to 4 bytes. A longer text would only slow the page down. */
const MOST_BYTES = 1 << 22;

/** Read a GeoJSON file into the field of the area. Throws an Error if there are several files, or the file is large. */
export async function readArea(files) {
  const [file, ...others] = files;
  if (others.length) throw new Error(`${files.length} files of areas were given; give one file with all polygons.`);
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${bytes(file.size)}; simplify its polygons.`);
  const field = byId("area");
  byId("options").open = true;
  field.value = await file.text();
  field.setSelectionRange(0, 0); // shows the beginning
  field.focus();
}
