"""Coordinate systems as GDAL reads them from the keys of a GeoTIFF, for those that are not known here."""

from __future__ import annotations

from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.raster.crs.proj_string import RefusedError, check_words
from vllm_mmout.raster.gdal.datasets import Datasets, has_rasterio
from vllm_mmout.raster.gdal.names import TIFF
from vllm_mmout.raster.gdal.systems import crs_text
from vllm_mmout.raster.geotag import GeoTag
from vllm_mmout.raster.writing.ifd import Image, head

if TYPE_CHECKING:
    from vllm_mmout.raster.projection import Keys

_HORIZONTAL = range(1024, 4096)
_CITATIONS = (1026, 2049, 3073)
"""Keys of names."""
_LONGEST, _MOST_NUMBERS = 1000, 16
_SHORTS = range(1 << 16)
_PIXEL = ((256, 1), (257, 1), (258, 8), (259, 1), (262, 1), (277, 1), (278, 1))
"""Tags of a grey image of one pixel (TIFF 6.0, section 4), and their values."""
_SYSTEMS = ("PROJCS[", "GEOGCS[", "GEOCCS[", "PROJCRS[", "GEOGCRS[")
_WKT = "PE STRING"
"""What stands in a text that GDAL would read as WKT."""


def system_by_gdal(tags: tuple[GeoTag, ...]) -> str | None:
    """The coordinate system that GDAL reads from the tags of a GeoTIFF's keys.

    Args:
        tags: of keys as `told_to_gdal` leaves them.

    Returns:
        "EPSG:n" or WKT; None where rasterio is not installed, or GDAL makes no system of the keys.

    """
    return _asked(tags) if has_rasterio() else None


def told_to_gdal(keys: Keys) -> Keys:
    """The keys of a horizontal system that GDAL may see.

    These are numbers, and names that are no WKT and no PROJ string, which may name a file, in sizes that are in use.
    """
    return {key: value for key, value in keys.items() if key in _HORIZONTAL and _is_harmless(key, value)}


def _is_harmless(key: int, value: int | str | tuple[float, ...]) -> bool:
    if isinstance(value, int):
        return value in _SHORTS
    if not isinstance(value, str):
        return len(value) <= _MOST_NUMBERS
    if key not in _CITATIONS or len(value) > _LONGEST or _WKT in value.upper():
        return False
    try:
        check_words([value])
    except RefusedError:
        return False
    return True


@lru_cache(maxsize=64)
def _asked(tags: tuple[GeoTag, ...]) -> str | None:
    from rasterio.errors import CRSError

    pixel = [GeoTag.shorts(code, [value]) for code, value in _PIXEL]
    file = head([Image([*pixel, *tags], np.ones(1, np.int64), tiled=False)]) + b"\0"
    try:
        with (
            closing(Datasets("a coordinate system", "", TIFF.drivers, file)) as datasets,
            datasets.dataset() as dataset,
        ):
            crs = crs_text(dataset.crs)
    except (InputError, CRSError):
        return None
    return crs if crs is not None and crs.startswith(("EPSG:", *_SYSTEMS)) else None
