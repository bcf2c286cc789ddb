/** The input: its preview from the server, and the line that describes it. */
import { send } from "./api.js";
import { byId } from "./elements.js";
import { body } from "./options.js";
import { Raster } from "./raster.js";
import { bytes, count } from "./units.js";

/**
 * Send files to the server and return their preview.
 * @param {File[]} files of one input
 * @param {(share: number) => void} onSent gets the share of the upload that is sent, from 0 to 1
 * @param {AbortSignal} signal
 * @returns {Promise<{files: File[], raster: Raster}>}
 */
export async function read(files, onSent, signal) {
  const preview = await send("scenes/preview", body(files, {}), onSent, signal);
  return { files, raster: new Raster(preview) };
}

/** Show name, size, bands and dtype of the input. */
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

/** Return the name of the first file, with the number of further files. */
export const nameOf = ([first, ...others]) => (others.length ? `${first.name} and ${others.length} more` : first.name);
