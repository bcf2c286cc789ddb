"""Warped rasters: values on the grid of a map do not depend on the window that is read."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio
from rasterio.transform import Affine

from vllm_mmout.geo import Georeference, MapGrid, Window, warped

ALONG, ACROSS = 20 * np.cos(0.3), 20 * np.sin(0.3)
TURNED = Affine(ALONG, -ACROSS, 700_000, -ACROSS, -ALONG, 5_110_000)
"""Transform of a grid of 20 m that is turned by 17 degrees."""


@pytest.mark.parametrize(("crs", "pixel"), [("EPSG:32632", 20.0), ("EPSG:32632", 30.0), ("EPSG:32633", 50.0)])
def test_a_pixel_has_one_value_in_any_window(tmp_path, crs, pixel):
    """Bilinear values are the same in a window, in a smaller window, and on a grid that begins at a later row."""
    values = np.random.default_rng(1).random((1, 800, 800), np.float32)
    profile = {"crs": "EPSG:32632", "transform": TURNED, "count": 1, "height": 800, "width": 800, "dtype": "float32"}
    with rasterio.open(tmp_path / "scene.tif", "w", driver="GTiff", nodata=np.nan, **profile) as file:
        file.write(values)
    (x,), (y,) = rasterio.warp.transform("EPSG:32632", crs, [703_000], [5_103_000])
    whole = MapGrid(Georeference(crs=crs, transform=(pixel, 0.0, x, 0.0, -pixel, y)), (200, 300))
    below = whole.window(Window(70, 40, 130, 260))

    def read(grid, window):
        with warped(tmp_path / "scene.tif", grid, resampling="bilinear", nodata=np.nan) as raster:
            return raster.read(window)[0]

    expected = read(whole, Window(0, 0, 200, 300))[:, 192:, 40:]
    assert np.isfinite(expected).mean() > 0.3
    np.testing.assert_allclose(read(whole, Window(192, 40, 8, 260)), expected, atol=1e-3)
    np.testing.assert_allclose(read(below, Window(122, 0, 8, 260)), expected, atol=1e-3)
    last = whole.window(Window(192, 40, 8, 260))
    np.testing.assert_allclose(read(last, Window(0, 0, 8, 260)), expected, atol=1e-3)
