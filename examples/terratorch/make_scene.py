"""Command that writes a scene: a GeoTIFF of reflectances with structure at several scales, the same each time.

    python make_scene.py scene.tif 1024
    python make_scene.py scene.tif 512 --bands 12 --dtype float32 --nodata

Integers are reflectances times 10,000, as in the products of Sentinel-2 and HLS. float32 holds the reflectances.
"""

import argparse
from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import from_origin

SCALE = 10_000
NODATA = -9999
TRANSFORM = from_origin(700_000, 4_400_000, 10, 10)
"""Georeference: pixels of 10 m in EPSG:32630."""


def noise(random: np.random.Generator, size: int, cell: int) -> NDArray[np.float32]:
    """Return smooth noise [size, size] from 0 to 1, with hills about ``cell`` pixels wide."""
    knots = np.arange(-(-size // cell) + 1) * cell
    values = random.random((knots.size, knots.size))
    pixels = np.arange(size)
    across = np.stack([np.interp(pixels, knots, row) for row in values])
    return np.stack([np.interp(pixels, knots, column) for column in across.T], axis=1).astype(np.float32)


def reflectances(size: int, bands: int, seed: int = 0) -> NDArray[np.float32]:
    """Return reflectances [bands, size, size]: four land covers with sharp borders, hills within them, and noise."""
    random = np.random.default_rng(seed)
    west, north = (noise(random, size, max(size // 3, 1)) + 0.1 * noise(random, size, max(size // 24, 1)) for _ in "xy")
    covers = 2 * (west > np.median(west)).astype(int) + (north > np.median(north))
    levels = np.array([0.03, 0.12, 0.25, 0.45]) * random.uniform(0.7, 1.3, (bands, 4))
    hills = 0.9 + 0.2 * noise(random, size, max(size // 12, 1))
    grain = random.normal(0, 0.005, (bands, size, size))
    return (levels[:, covers] * hills + grain).astype(np.float32)


def make_scene(path: Path, size: int, *, bands: int = 6, dtype: str = "int16", nodata: bool = False) -> Path:
    """Write a scene and return its path.

    Args:
        path: The GeoTIFF to write.
        size: Height and width in pixels.
        bands: Number of bands.
        dtype: "int16" or "float32".
        nodata: Whether a corner and some single pixels have no observation.

    """
    values = reflectances(size, bands).clip(1 / SCALE, 1)
    pixels = np.rint(values * SCALE).astype(dtype) if dtype == "int16" else values.astype(dtype)
    if nodata:
        row, col = np.indices((size, size))
        pixels[:, (row + 2 * col < size // 2) | (np.random.default_rng(1).random((size, size)) < 0.001)] = NODATA
    profile = {"driver": "GTiff", "crs": "EPSG:32630", "transform": TRANSFORM, "compress": "deflate"}
    if nodata:
        profile["nodata"] = NODATA
    if size > 256:
        profile |= {"tiled": True, "blockxsize": 256, "blockysize": 256}
    with rasterio.open(path, "w", height=size, width=size, count=bands, dtype=dtype, **profile) as file:
        file.write(pixels)
    return path


def main() -> None:
    """Write the scene that the command line describes."""
    parser = argparse.ArgumentParser(description="Make a georeferenced GeoTIFF with structure at several scales.")
    parser.add_argument("out", type=Path, help="path of the GeoTIFF")
    parser.add_argument("size", type=int, help="height and width in pixels")
    parser.add_argument("--bands", type=int, default=6)
    parser.add_argument("--dtype", choices=("int16", "float32"), default="int16")
    parser.add_argument("--nodata", action="store_true", help="leave some pixels without an observation")
    options = parser.parse_args()
    print(make_scene(options.out, options.size, bands=options.bands, dtype=options.dtype, nodata=options.nodata))


if __name__ == "__main__":
    main()
