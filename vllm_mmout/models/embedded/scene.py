"""Provide the embedded scene, a generated satellite image of a flooded river, and its ground truth."""

from __future__ import annotations

import filecmp
import os
import shutil
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.geo import atomic_file, read_raster

SCENE: Final = Path(__file__).resolve().parent / "scene.tif"
"""Path of the embedded scene, a GeoTIFF [6, 512, 512] of int16.

The values are reflectance times 10000, and nodata is -9999. The pixels are 10 m wide, in EPSG:32632.

``python scripts/scene_generator`` makes this file and `TRUTH`.
"""
TRUTH: Final = SCENE.with_name("truth.tif")
"""Path of the scene's ground truth, a GeoTIFF [1, 512, 512] of uint8 on the pixel grid of `SCENE`. Each pixel is
`LAND`, `WATER` or `UNOBSERVED`."""

LAND: Final = 0
WATER: Final = 1
UNOBSERVED: Final = 255
"""Value of the ground truth where the ground is not visible: under clouds, and beyond the edge of the swath."""


def embedded_scene(path: str | Path) -> Path:
    """Copy the embedded scene, a GeoTIFF of six bands, to ``path``, and return the path.

    A file that already holds the scene is left as it is.

    Raises:
        SaveError: the path cannot be written, or holds a file with other content, which is kept.

    """
    target = Path(path)
    if os.path.lexists(target):
        if not _is_scene(target):
            raise SaveError(f"{target} exists and is not the embedded scene; choose another name, or remove it first")
        return target
    with atomic_file(target) as part:
        shutil.copyfile(SCENE, part)
    return target


def _is_scene(path: Path) -> bool:
    try:
        return path.is_file() and filecmp.cmp(SCENE, path, shallow=False)
    except OSError as error:
        raise SaveError(f"cannot read {path}, which exists: {error.strerror or error}; choose another name") from error


def embedded_truth() -> NDArray[np.uint8]:
    """Return the ground truth of the embedded scene, uint8 [512, 512]: `LAND`, `WATER` or `UNOBSERVED`."""
    truth: NDArray[np.uint8] = read_raster(TRUTH).array[0]
    return truth


def water_iou(classes: NDArray[np.integer], truth: NDArray[np.uint8], *, clouds: bool = False) -> float:
    """Return the intersection over union of the class `WATER` in ``classes`` and ``truth``, both [height, width].

    Pixels where the truth is `UNOBSERVED` are left out. With ``clouds`` they count as no water, so a cloud that was
    taken for water is an error.
    """
    if classes.shape != truth.shape:
        raise OptionError(f"classes must have the shape of the truth {truth.shape}, got {classes.shape}")
    counted = np.ones(truth.shape, bool) if clouds else truth != UNOBSERVED
    predicted, actual = (classes == WATER)[counted], (truth == WATER)[counted]
    union = int(np.count_nonzero(predicted | actual))
    return int(np.count_nonzero(predicted & actual)) / union if union else 1.0
