/** Draws an input: three bands as red, green and blue, or one band in grey. Pixels without data are transparent. */
import { byId, made } from "./elements.js";
import { limits } from "./stretch.js";

const CHANNELS = ["band-red", "band-green", "band-blue"];

/** The canvas of the input, and the form fields that choose its bands and stretch. */
export class Picture {
  constructor() {
    this.canvas = byId("input");
    this.raster = null;
    byId("bands").addEventListener("change", () => this.draw());
  }

  /** Show another input, with its default bands and stretch. */
  use(raster) {
    this.raster = raster;
    const usual = raster.usual.map((band) => band - 1);
    for (const [i, id] of [...CHANNELS, "band-grey"].entries()) {
      const named = raster.bands.map((_, band) => made("option", { value: band }, label(raster, band)));
      byId(id).replaceChildren(...named);
      byId(id).value = usual[i % 3] ?? usual[0] ?? 0;
    }
    const bytes = raster.dtype === "uint8";
    byId("mode").value = usual.length === 3 ? "colour" : "grey";
    byId("mode").disabled = raster.bands.length < 2;
    byId("stretch").value = bytes ? "none" : "percentiles";
    byId("stretch").querySelector("[value=none]").hidden = !bytes;
    byId("limits").value = "each";
    this.draw();
  }

  /** Indices, from 0, of the bands that are shown. */
  get bands() {
    const ids = byId("mode").value === "grey" ? ["band-grey"] : CHANNELS;
    return ids.map((id) => Number(byId(id).value));
  }

  /** Redraw the input with the bands and the stretch that the form fields select. */
  draw() {
    const { raster, bands, canvas } = this;
    const grey = bands.length === 1;
    byId("bands").dataset.mode = grey ? "grey" : "colour";
    byId("limits").disabled = byId("stretch").value === "none";
    const ends = limits(raster, bands, byId("stretch").value, byId("limits").value === "common");
    const { width, height } = raster.shown;
    const image = new ImageData(width, height);
    fill(image.data, raster, bands, ends);
    canvas.width = width;
    canvas.height = height;
    canvas.getContext("2d", { colorSpace: "srgb" }).putImageData(image, 0, 0);
  }
}

function fill(pixels, raster, bands, ends) {
  const channels = [0, 1, 2].map((channel) => {
    const index = bands.length === 1 ? 0 : channel;
    const [low, high] = ends[index];
    return { values: raster.bands[bands[index]], low, factor: 255 / (high - low) };
  });
  for (let i = 0, length = channels[0].values.length; i < length; i++) {
    let seen = 255;
    for (let channel = 0; channel < 3; channel++) {
      const { values, low, factor } = channels[channel];
      const value = values[i];
      if (raster.missing(value)) seen = 0;
      pixels[4 * i + channel] = (value - low) * factor; // clamped and rounded by the array
    }
    pixels[4 * i + 3] = seen;
  }
}

function label(raster, band) {
  const name = raster.names[band];
  return name === `band ${band + 1}` ? name : `${band + 1} ${name}`;
}
