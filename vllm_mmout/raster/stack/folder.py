"""The rasters of a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError
from vllm_mmout.raster.stack.band_names import natural_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SUFFIXES = (".tif", ".tiff", ".jp2", ".vrt")
"""What is taken for a raster in a folder; metadata, overviews and quicklooks beside them are passed over."""

_PRODUCT = ("R*m", "IMG_DATA", "IMG_DATA/R*m", "GRANULE/*/IMG_DATA", "GRANULE/*/IMG_DATA/R*m")
"""Where a Sentinel-2 product has its bands, seen from one of its folders; those of level 2 in a folder a resolution."""


def rasters_in(folder: Path) -> list[Path]:
    """The rasters directly in a folder, "B2" before "B10".

    Raises:
        InputError: the folder cannot be read.

    """
    return _inside(folder, lambda path: path.suffix.lower() in SUFFIXES and path.is_file())


def rasters_of(folder: Path) -> list[Path]:
    """The rasters of the one scene that a folder holds: those directly in it, or where a Sentinel-2 product has them.

    Raises:
        InputError: a folder cannot be read.

    """
    found = rasters_in(folder)
    for pattern in _PRODUCT:
        if found:
            break
        places = sorted(place for place in folder.glob(pattern) if place.is_dir())
        found = [path for place in places for path in rasters_in(place)]
    return found


def folders_in(folder: Path) -> list[Path]:
    """The folders directly in a folder that hold rasters, in the same order.

    Raises:
        InputError: a folder cannot be read.

    """
    return [path for path in _inside(folder, lambda path: path.is_dir()) if rasters_in(path)]


def _inside(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    try:  # of a folder that may be listed and no more, nothing but the names can be found out
        found = [path for path in folder.iterdir() if not path.name.startswith(".") and wanted(path)]
    except OSError as error:
        raise InputError(f"cannot read the folder {folder}: {error.strerror}") from error
    return sorted(found, key=lambda path: natural_order(path.name))
