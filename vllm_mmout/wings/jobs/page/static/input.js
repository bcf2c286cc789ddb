/** The input: its preview from the server, the line that describes it, and what several files are. */
import { send } from "./api.js";
import { byId } from "./elements.js";
import { body } from "./options.js";
import { Raster } from "./raster.js";
import { bytes, count } from "./units.js";

/** Return whether several files are the scenes of a mosaic. Otherwise they are bands of one scene. */
const areScenes = (files) => files.length > 1 && byId("files-are").value === "scenes";

/** Call a function when the user chooses what several files are. */
export const onKindChosen = (onChosen) => byId("files-are").addEventListener("change", onChosen);

/**
 * Send files to the server and return their preview. Of a mosaic only the first scene is sent.
 * @param {File[]} files bands of one scene, or scenes of a mosaic
 * @param {(share: number) => void} onSent gets the share of the upload that is sent, from 0 to 1
 * @param {AbortSignal} signal
 * @returns {Promise<{files: File[], scenes: boolean, raster: Raster}>}
 */
export async function read(files, onSent, signal) {
  const scenes = areScenes(files);
  const preview = await send("scenes/preview", body(scenes ? files.slice(0, 1) : files, {}), onSent, signal);
  return { files, scenes, raster: new Raster(preview) };
}

/** Show name, size, bands and dtype of the input. Several files get the choice what they are. */
export function describe({ files, scenes, raster }) {
  const size = files.reduce((sum, file) => sum + file.size, 0);
  byId("input-part").hidden = false;
  byId("picture").hidden = raster === null;
  byId("several").hidden = files.length < 2;
  for (const name of ["order", "each-day"]) byId(`${name}-part`).hidden = byId(name).disabled = !areScenes(files);
  byId("input-name").textContent = nameOf(files);
  byId("input-name").title = files.map((file) => file.name).join("\n");
  byId("input-facts").textContent = [
    ...(scenes ? [`${files.length} scenes, the first is shown`] : []),
    ...(raster ? facts(raster) : []),
    bytes(size),
  ].join(" · ");
}

function facts(raster) {
  const bands = raster.names.length;
  return [
    `${count(raster.width)} × ${count(raster.height)}`,
    `${bands} ${bands === 1 ? "band" : "bands"}`,
    raster.dtype,
    ...(raster.nodata === null ? [] : [`nodata ${Number(raster.nodata.toPrecision(6))}`]),
  ];
}

/** Return the name of the first file, with the number of further files. */
export const nameOf = ([first, ...others]) => (others.length ? `${first.name} and ${others.length} more` : first.name);
