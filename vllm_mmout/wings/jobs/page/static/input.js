/** The input: sent to be looked at, and drawn. */
import { send } from "./api.js";
import { byId } from "./elements.js";
import { body } from "./options.js";
import { Raster } from "./raster.js";
import { bytes, count } from "./units.js";

/**
 * Read files as the server sees them.
 * @param {File[]} files of one input
 * @param {(share: number) => void} onSent
 * @param {AbortSignal} signal
 * @returns {Promise<{files: File[], raster: Raster}>}
 */
export async function read(files, onSent, signal) {
  const preview = await send("scenes/preview", body(files, {}), onSent, signal);
  return { files, raster: new Raster(preview) };
}

/** Say what the input is. */
export function describe({ files, raster }) {
  const size = files.reduce((sum, file) => sum + file.size, 0);
  const bands = raster.names.length;
  byId("input-part").hidden = false;
  byId("input-name").textContent = nameOf(files);
  byId("input-name").title = files.map((file) => file.name).join("\n");
  byId("input-facts").textContent = [
    `${count(raster.width)} × ${count(raster.height)}`,
    `${bands} ${bands === 1 ? "band" : "bands"}`,
    raster.dtype,
    ...(raster.nodata === null ? [] : [`nodata ${Number(raster.nodata.toPrecision(6))}`]),
    bytes(size),
  ].join(" · ");
}

/** What several files are called. */
export const nameOf = ([first, ...others]) => (others.length ? `${first.name} and ${others.length} more` : first.name);
