"""The embedded scene: a generated satellite image of a river in flood, with its truth.

The map is drawn first, the truth is read off the map, and only then the surfaces get their reflectance, the slopes
their shade, the sky its clouds and the sensor its noise. The truth is therefore not computed from the pixels that a
model sees: mixed pixels on the shore, plants that stand in the water, shadows and dark roofs make a model wrong.

Clouds stay in the image, as in a product that was not masked. A water index takes many of them for water (they reflect
more green than shortwave infrared): a mask of the scene shows them, the evaluation leaves them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError
from vllm_mmout.models.embedded.scene_light import add_clouds, reflectance, sense
from vllm_mmout.models.embedded.scene_map import UNIT, draw_map

LAND: Final = 0
WATER: Final = 1
UNOBSERVED: Final = 255
"""Truth where the ground is not seen: under clouds, and beyond the edge of the swath."""

NODATA: Final = -9999
_PIXEL_SIZE = 10.0
_TRANSFORM = (_PIXEL_SIZE, 0.0, 562_340.0, 0.0, -_PIXEL_SIZE, 4_990_280.0)
_CLOUDED = 0.15
"""Opacity from which a pixel is not an observation of the ground; a thinner veil and the clouds' shadows are."""
_SUBMERGED = 0.5
"""Share of a pixel under water from which it counts as water."""
_SMALLEST = 64


@dataclass(frozen=True, slots=True)
class Scene:
    """A generated scene."""

    array: NDArray[np.int16]
    """[6, height, width], reflectance times 10000, `NODATA` beyond the swath."""
    truth: NDArray[np.uint8]
    """[height, width]: `LAND`, `WATER`, or `UNOBSERVED`, which does not count in an evaluation."""
    crs: str = "EPSG:32632"
    transform: tuple[float, float, float, float, float, float] = _TRANSFORM
    """From column and row to easting and northing in metres, as in ``Affine``; the place is made up."""
    nodata: int = NODATA
    bands: tuple[str, ...] = ("blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2")


def make_scene(height: int = 512, width: int = 512, *, seed: int = 6) -> Scene:
    """Generate a scene of 64 pixels or more either way: the same one for the same arguments."""
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


def water_iou(classes: NDArray[np.integer], truth: NDArray[np.uint8]) -> float:
    """Intersection over union of `WATER` in class ids and truth, both [height, width], where it was observed."""
    if classes.shape != truth.shape:
        raise OptionError(f"classes must have the shape of the truth {truth.shape}, got {classes.shape}")
    found, there = (classes == WATER)[truth != UNOBSERVED], (truth == WATER)[truth != UNOBSERVED]
    union = int(np.count_nonzero(found | there))
    return int(np.count_nonzero(found & there)) / union if union else 1.0


def _beyond_swath(height: int, width: int) -> NDArray[np.bool_]:
    rows, cols = np.ogrid[:height, :width]
    return np.asarray(cols / width < 0.1 - 0.18 * rows / height)
