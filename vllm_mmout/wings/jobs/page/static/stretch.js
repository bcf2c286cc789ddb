/** The contrast stretch of a band: the values that are drawn as black and as full brightness. */

const SAMPLE = 1 << 16;

/**
 * Return the limits [low, high] of each band.
 * @param {import("./raster.js").Raster} raster
 * @param {number[]} bands indices from 0
 * @param {"percentiles"|"range"|"none"} kind
 * @param {boolean} common whether all bands share one pair of limits
 */
export function limits(raster, bands, kind, common) {
  if (kind === "none") return bands.map(() => [0, 255]);
  const ends = kind === "range" ? range : percentiles;
  if (!common) return bands.map((band) => ends(raster, [band]));
  const both = ends(raster, bands);
  return bands.map(() => both);
}

function range(raster, bands) {
  let [low, high] = [Infinity, -Infinity];
  for (const band of bands) {
    for (const value of raster.bands[band]) {
      if (raster.missing(value) || !Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return apart(low, high);
}

function percentiles(raster, bands) {
  const values = Float64Array.from(bands.flatMap((band) => sample(raster, band))).sort();
  const at = (share) => values[Math.round(share * (values.length - 1))];
  return values.length ? apart(at(0.02), at(0.98)) : apart(0, 1);
}

/** Return limits that differ. A band with a single value is drawn in a middle grey. */
function apart(low, high) {
  if (!(low <= high)) return [0, 1];
  return high > low ? [low, high] : [low - 0.5, low + 0.5];
}

function sample(raster, band) {
  const values = raster.bands[band];
  const step = Math.max(1, Math.floor(values.length / SAMPLE));
  const found = [];
  for (let i = 0; i < values.length; i += step) {
    if (!raster.missing(values[i]) && Number.isFinite(values[i])) found.push(values[i]);
  }
  return found;
}
