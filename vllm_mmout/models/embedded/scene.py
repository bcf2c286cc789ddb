"""The embedded scene: a generated satellite image of a river in flood, and its ground truth."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.geo import read_raster

SCENE: Final = Path(__file__).resolve().parent / "scene.tif"
"""GeoTIFF [6, 512, 512], int16, reflectance times 10000, nodata -9999, EPSG:32632, pixels of 10 m.

``python scripts/scene_generator`` makes this file and the truth.
"""
TRUTH: Final = SCENE.with_name("truth.tif")
"""GeoTIFF [1, 512, 512], uint8, on the grid of the scene: `LAND`, `WATER` or `UNOBSERVED`."""

LAND: Final = 0
WATER: Final = 1
UNOBSERVED: Final = 255
"""Value of the truth where the ground is not visible: under clouds, and beyond the edge of the swath."""


def embedded_scene(path: str | Path) -> Path:
    """Copy the embedded scene, a GeoTIFF of six bands, to a path, and return the path; SaveError if it cannot."""
    target = Path(path)
    try:
        shutil.copyfile(SCENE, target)
    except OSError as error:
        raise SaveError(
            f"cannot write {target}: {error.strerror or error}; name a new file in a folder that can be written"
        ) from error
    return target


def embedded_truth() -> NDArray[np.uint8]:
    """Return the truth of the embedded scene, uint8 [512, 512]: `LAND`, `WATER` or `UNOBSERVED`."""
    truth: NDArray[np.uint8] = read_raster(TRUTH).array[0]
    return truth


def water_iou(classes: NDArray[np.integer], truth: NDArray[np.uint8]) -> float:
    """Return the intersection over union of `WATER` in class ids and truth, both [height, width], where observed."""
    if classes.shape != truth.shape:
        raise OptionError(f"classes must have the shape of the truth {truth.shape}, got {classes.shape}")
    predicted, actual = (classes == WATER)[truth != UNOBSERVED], (truth == WATER)[truth != UNOBSERVED]
    union = int(np.count_nonzero(predicted | actual))
    return int(np.count_nonzero(predicted & actual)) / union if union else 1.0
