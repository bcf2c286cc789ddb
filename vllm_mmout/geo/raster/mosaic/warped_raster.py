"""Class `WarpedRaster`: read a GeoTIFF by windows, resampled to the grid of a map."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.enums import Resampling
from rasterio.errors import RasterioError
from rasterio.session import DummySession
from rasterio.transform import Affine
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window as RasterioWindow

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.text import rasterio_crs
from vllm_mmout.geo.raster.nodata import observed
from vllm_mmout.geo.raster.pixel_grid import PixelGrid, transformed
from vllm_mmout.geo.raster.raster import Window

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.mosaic.map_grid import MapGrid

_TOLERANCE = 1e-5
"""Largest error, in pixels, of the positions that GDAL computes when it resamples a file.

GDAL's default is 1/8. With such an error, the value of a pixel would depend on the window that is read."""


class WarpedRaster:
    """GeoTIFF that GDAL resamples to the grid of a map, window by window.

    Args:
        dataset: rasterio's ``WarpedVRT`` of the file on the grid of the map.
        nodata: nodata value of the file, or None if the dataset has an alpha band instead.

    """

    def __init__(self, dataset: Any, nodata: float | None) -> None:
        self._dataset = dataset
        self._nodata = nodata

    def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return the pixels [bands, height, width] of a window and the mask of valid pixels, bool [height, width].

        The mask is None if all pixels are valid.
        """
        place = RasterioWindow(window.col, window.row, window.width, window.height)
        pixels = self._dataset.read(window=place)
        mask = None
        if self._nodata is None:
            pixels, mask = pixels[:-1], pixels[-1] != 0
        return pixels, observed(pixels, mask, self._nodata)


@contextmanager
def warped(path: Path, grid: MapGrid, *, resampling: str, nodata: float | None) -> Iterator[WarpedRaster]:
    """Open a GeoTIFF for reading by windows on the grid of a map. GDAL resamples the file's pixels to this grid.

    Args:
        path: the file, which this package has written.
        grid: grid of the map.
        resampling: "nearest" or "bilinear".
        nodata: nodata value of the file, or None if all its pixels are valid.

    """
    valid = {"add_alpha": True} if nodata is None else {"src_nodata": nodata, "nodata": nodata}
    try:
        with (
            rasterio.Env(session=DummySession()),
            rasterio.open(path, driver="GTiff") as file,
            WarpedVRT(
                file,
                crs=rasterio_crs(grid.georeference.crs or ""),
                transform=Affine(*(grid.georeference.transform or ())),
                height=grid.size[0],
                width=grid.size[1],
                resampling=Resampling[resampling],
                tolerance=_TOLERANCE,
                **_warp_scales(file, grid),
                **valid,
            ) as dataset,
        ):
            yield WarpedRaster(dataset, nodata)
    except (RasterioError, CPLE_BaseError) as error:
        cause = error.__cause__ or error  # rasterio's message only refers to the cause
        raise InputError(f"the result cannot be brought onto the grid of the map: {cause}") from error


def _warp_scales(file: Any, grid: MapGrid) -> dict[str, float]:
    """Return GDAL's warp options XSCALE and YSCALE, which make GDAL resample all windows with the same scale.

    The options are the number of pixels of the map per pixel of the file, at most 1. GDAL averages pixels if the map is
    coarser than the file. It would estimate a scale for each window, so that pixel values would depend on the window
    that is read. The scale at the middle of the file is used for all windows instead.
    """
    row, col = file.height / 2, file.width / 2
    cols, rows = np.array([col, col + 1, col]), np.array([row, row, row + 1])
    a, b, c, d, e, f = file.transform[:6]
    points = a * cols + b * rows + c, d * cols + e * rows + f
    there = transformed(file.crs, rasterio_crs(grid.georeference.crs or ""), points)
    cols, rows = PixelGrid(grid.georeference.transform or Affine.identity()[:6], grid.size).pixels(there)
    steps = np.array([[cols[1] - cols[0], cols[2] - cols[0]], [rows[1] - rows[0], rows[2] - rows[0]]])
    width, height = np.hypot(*np.linalg.inv(steps).T)  # of a pixel of the map, in pixels of the file
    return {"XSCALE": min(1.0, 1 / width), "YSCALE": min(1.0, 1 / height)}
