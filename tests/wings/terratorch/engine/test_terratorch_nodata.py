"""Pixels without an observation: nodata in the result, and to the model what its data module puts in their place."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio
from plain_terratorch import check_mask, location_of, read

TILE = 224


def check_gaps(raster, gaps, logits):
    """Gaps are nodata; all other pixels are the plain model's, which saw 0 in the gaps.

    Every pixel of a tile depends on all others of it, so that one beside a gap is not what it is without the gap; but
    nothing of the gap's own value may reach it.
    """
    mask = raster.read()[0]
    assert raster.nodata == 255
    np.testing.assert_array_equal(mask == 255, gaps)
    check_mask(np.where(gaps, logits.argmax(0), mask), logits, most_unsure=5e-4)


def test_nodata(start, flood, plain, scene_with_gaps):
    """The nodata value of the file, in a corner and in single pixels."""
    pixels = read(scene_with_gaps)
    gaps = (pixels == -9999).any(0)
    assert 0.01 < gaps.mean() < 0.5
    raster = start(flood).generate(str(scene_with_gaps))[0].outputs
    check_gaps(raster, gaps, plain(flood).by_tiles(np.where(gaps, 0, pixels), location_of(scene_with_gaps)))


@pytest.mark.parametrize("value", [np.nan, -9999.0], ids=["NaN", "nodata of the request"])
def test_gaps_of_arrays(start, flood, plain, scene, value):
    """NaN needs not be declared; a nodata value of the request counts as one of the file."""
    from vllm_mmout import OutputParams

    pixels = read(scene).astype(np.float32) / 10_000
    gaps = np.zeros(pixels.shape[1:], bool)
    gaps[3, 5] = gaps[100:140, 60:90] = True
    holed = np.where(gaps, np.float32(value), pixels)
    nodata = None if np.isnan(value) else value
    asked = OutputParams(location=location_of(scene), nodata=nodata)
    raster = start(flood).generate(holed, asked)[0].outputs
    check_gaps(raster, gaps, plain(flood).by_tiles(np.where(gaps, 0, pixels), location_of(scene)))


def test_other_tiles_are_not_touched(start, flood, scene):
    """A tile without gaps is as in the scene without gaps, pixel by pixel."""
    from vllm_mmout import OutputParams

    pixels = read(scene).astype(np.float32)
    holed = pixels.copy()
    holed[:, 10:200, 10:200] = np.nan
    asked = OutputParams(location=location_of(scene), scale=0.0001)
    with_gaps, without = (result.outputs.read()[0] for result in start(flood).generate([holed, pixels], asked))
    assert (with_gaps[:, TILE:] == without[:, TILE:]).mean() >= 0.9999
    assert (with_gaps[TILE:] == without[TILE:]).mean() >= 0.9999
    assert (with_gaps == 255).sum() == 190 * 190


def test_real_scene(start, flood, plain, hls, tmp_path):
    """Six bands of a real scene by ``indices`` and ``scale``: the mask lies exactly on it, and is the plain model's."""
    from vllm_mmout import OutputParams

    out = tmp_path / "mask.tif"
    asked = OutputParams(indices=[1, 2, 3, 4, 5, 6], scale=0.0001, path=str(out))
    start(flood).generate(str(hls), asked)
    with rasterio.open(hls) as before, rasterio.open(out) as after:
        assert (after.crs, after.transform, after.shape) == (before.crs, before.transform, before.shape)
        assert (after.bounds, after.count, after.dtypes) == (before.bounds, 1, ("uint8",))
        mask = after.read(1)
    pixels = read(hls)[1:7]
    gaps = (pixels == -9999).any(0)
    logits = plain(flood).by_tiles(np.where(gaps, 0, pixels * np.float32(0.0001)), location_of(hls))
    np.testing.assert_array_equal(mask == 255, gaps)
    check_mask(
        np.where(gaps, logits.argmax(0), mask), logits, least=0, most_unsure=5e-4
    )  # the folder is centred on another scene
