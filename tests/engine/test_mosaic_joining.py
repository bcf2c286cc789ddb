"""Joining of rasters to a map: values without nodata, floating-point values, and rasters that do not fit together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vllm_mmout.engine.mosaic.joining import Joining, SceneResult
from vllm_mmout.errors import DecodeError
from vllm_mmout.geo import Georeference, MapGrid
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.stored import StoredRaster

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")


def result(tmp_path, name, array, west, *, step=10.0, **described):
    """A raster in a file, whose upper left corner lies at (west, 5,000,000) in zone 32."""
    place = Georeference(crs="EPSG:32632", transform=(step, 0, west, 0, -step, 5_000_000))
    raster = RasterOutput(array, georeference=place, **described)
    path = tmp_path / f"{name}.tif"
    raster.save(path)
    return SceneResult(name, StoredRaster(path, **raster.described), path)


def joined(tmp_path, *results, **options):
    """The map of rasters on the grid of the first, extended to cover all."""
    grid = MapGrid.of(results[0].placed).around([each.placed for each in results])
    return Joining(results, grid, **options).raster(tmp_path, {})


def test_pixels_that_no_scene_covers_become_nodata(tmp_path):
    """A picture without a nodata value gets one for the gap between two scenes, and keeps its own zeros."""
    one, other = (np.full((3, 4, 5), value, np.uint8) for value in (0, 7))
    made = joined(tmp_path, result(tmp_path, "a", one, 500_000), result(tmp_path, "b", other, 500_070))
    assert made.nodata == 255
    np.testing.assert_array_equal(made.array[0, 0], [0] * 5 + [255] * 2 + [7] * 5)
    white = result(tmp_path, "white", np.full((3, 4, 5), 255, np.uint8), 500_000)
    with pytest.raises(DecodeError, match="uses 255, which would become nodata"):
        joined(tmp_path, white, result(tmp_path, "c", other, 500_070))


def test_floats_are_resampled_as_the_request_says(tmp_path):
    """Half a pixel off, "nearest" keeps values of the second scene, and "bilinear" takes means, without nodata."""
    values = np.arange(6, dtype=np.float32).reshape(1, 1, 6).repeat(3, axis=1)
    values[:, :, 2] = np.nan
    hidden = result(tmp_path, "a", np.full((1, 3, 6), np.nan, np.float32), 500_000, nodata=math.nan)
    shifted = result(tmp_path, "b", values, 500_005, nodata=math.nan)
    (row,) = joined(tmp_path, hidden, shifted, resampling="bilinear").array[:, 1]
    np.testing.assert_allclose(row, [0, 0.5, math.nan, 3, 3.5, 4.5, math.nan])
    (row,) = joined(tmp_path, hidden, shifted).array[:, 1]
    assert set(row[~np.isnan(row)]) <= {0, 1, 3, 4, 5}


def test_rasters_of_different_classes_are_refused(tmp_path):
    """The error names both scenes and the names of their classes; no file of a map is left."""
    array = np.zeros((1, 4, 5), np.uint8)
    results = [
        result(tmp_path, name, array, 500_000, nodata=255, class_names=("land", water))
        for name, water in (("a", "water"), ("b", "lake"))
    ]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DecodeError, match=r"results of a and b differ in class_names, .*water.*lake"):
        joined(tmp_path, *results)
    assert sorted(tmp_path.iterdir()) == before


def test_a_map_of_several_windows_equals_one_of_a_single_window(tmp_path):
    """A turned raster joined in windows has the pixels that rasterio reads at once."""
    from rasterio.transform import Affine
    from rasterio.vrt import WarpedVRT

    array = np.random.default_rng(3).integers(0, 200, (1, 30, 450), np.uint8)
    place = Georeference(crs="EPSG:32632", transform=(9.93, 0.517, 500_000, 0.517, -9.93, 5_000_000))
    RasterOutput(array, georeference=place, nodata=255).save(tmp_path / "t.tif")
    scene = SceneResult("t", StoredRaster(tmp_path / "t.tif", georeference=place, nodata=255), tmp_path / "t.tif")
    grid = MapGrid.of_system("EPSG:32632", 1.0).around([scene.placed])
    made = Joining([scene], grid).raster(tmp_path, {})
    assert made.width > 512 * 8
    assert made.height > 512
    where = {"crs": "EPSG:32632", "transform": Affine(*grid.georeference.transform), "tolerance": 1e-3}
    with (
        rasterio.open(tmp_path / "t.tif") as file,
        WarpedVRT(file, height=grid.size[0], width=grid.size[1], nodata=255, **where) as whole,
    ):
        np.testing.assert_array_equal(made.array, whole.read())
