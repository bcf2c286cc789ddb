"""TIFFs with files beside them, made by rasterio, and what rasterio makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Window, open_raster, read_raster

SIZE = (40, 56)
PIXELS = np.random.default_rng(0).integers(1, 200, (3, *SIZE), np.uint8)
UTM = {"crs": "EPSG:32632", "transform": rasterio.Affine(10, 0, 5e5, 0, -10, 5e6)}
WORLD = "2.5\n0.25\n-0.125\n-2.5\n600000.75\n5100000.5\n"
POINTS = [GroundControlPoint(0, 0, 9, 45), GroundControlPoint(0, 50, 9.5, 45), GroundControlPoint(30, 3, 9, 44)]
WKT = {"code": CRS.from_epsg(32633).to_wkt(), "own": CRS.from_proj4("+proj=laea +lat_0=40 +lon_0=3").to_wkt()}


def scene(path: Path, *, points: bool = False, **options: Any) -> Path:
    """A TIFF."""
    count = options.pop("count", 3)
    shape = {"height": SIZE[0], "width": SIZE[1], "count": count, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="GTiff", **shape, **options) as file:
        file.write(np.resize(PIXELS, (count, *SIZE)))
        if points:
            file.gcps = (POINTS, CRS.from_epsg(4326))
    return path


def mask(path: Path, array: np.ndarray[Any, Any], flags: int | None = 2, **options: Any) -> None:
    """A file of a mask, as GDAL writes it."""
    bands, height, width = array.shape
    shape = {"height": height, "width": width, "count": bands, "dtype": array.dtype.name}
    with rasterio.open(path, "w", driver="GTiff", **shape, **options) as file:
        file.write(array)
        if flags is not None:
            file.update_tags(**{f"INTERNAL_MASK_FLAGS_{band + 1}": str(flags) for band in range(4)})


def pam(path: Path, *parts: str, root: str = "PAMDataset") -> None:
    """GDAL's PAM of a raster."""
    path.with_name(path.name + ".aux.xml").write_text(f"<{root}>{''.join(parts)}</{root}>")


def check_refused(path: Path, says: str) -> None:
    """That a raster is refused for a file beside it, by an error that begins so and says what to do with that file."""
    with pytest.raises(InputError, match=f"^{path.parent}/{says}") as caught:
        read_raster(path)
    assert str(caught.value).endswith("; correct the file, or remove it to read the raster without it")


def check(path: Path) -> Any:
    """That a raster is what rasterio makes of it, whole and in windows; gives ours."""
    ours = read_raster(path)
    with rasterio.open(path) as file:
        place = ours.georeference
        theirs = tuple(file.transform)[:6]
        points, points_crs = file.gcps
        assert (None if place is None else place.transform) == (None if theirs == (1, 0, 0, 0, 1, 0) else theirs)
        crs = None if place is None else place.crs or place.gcps_crs
        assert (None if crs is None else CRS.from_user_input(crs)) == (file.crs or points_crs)
        if theirs == (1, 0, 0, 0, 1, 0):
            assert [(p.row, p.col, p.x, p.y) for p in (place.gcps if place else ())] == [
                (p.row, p.col, p.x, p.y) for p in points
            ]
        valid = (file.read_masks() != 0).all(axis=0)
        np.testing.assert_array_equal(np.ones(SIZE, bool) if ours.valid() is None else ours.valid(), valid)
        with open_raster(path) as opened:
            parts = [(Window(3, 5, 20, 30), [2]), (Window(39, 0, 1, 56), [3, 1]), (Window(0, 7, 9, 1), [1])]
            for window, bands in parts:
                part = opened.read(window, bands)
                wanted = (file.read_masks(bands) != 0).all(axis=0)[window.rows, window.cols]
                found = part.valid()
                np.testing.assert_array_equal(np.ones(wanted.shape, bool) if found is None else found, wanted)
    return ours
