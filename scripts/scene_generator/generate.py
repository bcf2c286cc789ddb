"""The embedded scene: a generated satellite image of a river in flood, with its ground truth.

The map is drawn first, and the truth is taken from the map. Only then do the surfaces get their reflectance, the slopes
their shade, the sky its clouds and the sensor its noise. The truth is therefore not computed from the pixels that a
model sees: mixed pixels on the shore, plants in the water, shadows and dark roofs cause errors of a model.

Clouds stay in the image, as in a product without a cloud mask. A water index takes many of them for water, since they
reflect more green than shortwave infrared. A mask of the scene shows them, and the evaluation leaves them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scene_generator.light import add_clouds, reflectance, sense
from scene_generator.scene_map import UNIT, draw_map
from vllm_mmout.errors import OptionError
from vllm_mmout.geo import Georeference, write_geotiff
from vllm_mmout.models.embedded.scene import LAND, UNOBSERVED, WATER

NODATA: Final = -9999
_PIXEL_SIZE = 10.0
_TRANSFORM = (_PIXEL_SIZE, 0.0, 562_340.0, 0.0, -_PIXEL_SIZE, 4_990_280.0)
_CLOUDED = 0.15
"""Least opacity of clouds that hides the ground; pixels under thinner veils and cloud shadows count as observed."""
_SUBMERGED = 0.5
"""Fraction of a pixel under water above which the pixel counts as water."""
_SMALLEST = 64


@dataclass(frozen=True, slots=True)
class Scene:
    """A generated scene with its ground truth and georeference."""

    array: NDArray[np.int16]
    """int16 [6, height, width], reflectance times 10000, `NODATA` beyond the swath."""
    truth: NDArray[np.uint8]
    """uint8 [height, width]: `LAND`, `WATER`, or `UNOBSERVED`, which is left out of an evaluation."""
    crs: str = "EPSG:32632"
    transform: tuple[float, float, float, float, float, float] = _TRANSFORM
    """Affine transform from column and row to easting and northing in metres; the place is invented."""
    nodata: int = NODATA
    bands: tuple[str, ...] = ("blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2")


def make_scene(height: int = 512, width: int = 512, *, seed: int = 6) -> Scene:
    """Generate a scene of at least 64 x 64 pixels; equal arguments give equal scenes."""
    if min(height, width) < _SMALLEST:
        raise OptionError(f"a scene must have {_SMALLEST} pixels or more either way, got {height} x {width}")
    rng = np.random.default_rng(seed)
    scale = min(height, width) / UNIT
    scene = draw_map(rng, (height, width))
    truth = np.where(scene.water > _SUBMERGED, WATER, LAND).astype(np.uint8)
    ground = reflectance(rng, scene, _PIXEL_SIZE)
    image, opacity = add_clouds(rng, ground, scale)
    array = np.rint(sense(rng, image) * 10_000).clip(-2000, 16000).astype(np.int16)
    beyond = _beyond_swath(height, width)
    array[:, beyond] = NODATA
    truth[beyond | (opacity > _CLOUDED)] = UNOBSERVED
    return Scene(array, truth)


def write_scene(path: str | Path, scene: Scene) -> Path:
    """Write a scene as a georeferenced GeoTIFF: six bands, int16, reflectance times 10000."""
    target = Path(path)
    write_geotiff(
        target,
        scene.array,
        georeference=Georeference(crs=scene.crs, transform=scene.transform),
        nodata=scene.nodata,
        band_names=scene.bands,
        metadata={"TITLE": "Generated scene of a river in flood"},
    )
    return target


def write_truth(path: str | Path, scene: Scene) -> Path:
    """Write the truth of a scene as a GeoTIFF with one uint8 band."""
    target = Path(path)
    write_geotiff(
        target,
        scene.truth[None],
        georeference=Georeference(crs=scene.crs, transform=scene.transform),
        nodata=UNOBSERVED,
        band_names=("truth",),
        metadata={"TITLE": "Truth of the generated scene of a river in flood: 0 land, 1 water"},
    )
    return target


def _beyond_swath(height: int, width: int) -> NDArray[np.bool_]:
    rows, cols = np.ogrid[:height, :width]
    return np.asarray(cols / width < 0.1 - 0.18 * rows / height)
