"""Overviews and statistics against those of GDAL, and against themselves in another order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from gdal_overviews import by_gdal, overviews_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.enums import Resampling

from vllm_mmout.geo import are_classes
from vllm_mmout.geo.raster.writing import GeoTiffBlocks

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64")
DTYPES += ("float32", "float32")  # of which there is a shortcut in an order of its own
SIDES = st.sampled_from([1, 2, 3, 513, 1025, 1537]) | st.integers(500, 1600) | st.sampled_from([1024, 1026, 1100])


@st.composite
def rasters(draw: st.DrawFn) -> tuple[np.ndarray, float | None]:
    """Pixels with holes, and their nodata; odd and even sizes, thin ones."""
    dtype, seed = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    height, width = draw(SIDES), draw(SIDES)
    shape = (draw(st.sampled_from([1, 1, 2])), height, width if max(height, width) > 512 else 513)
    nodata = draw(st.sampled_from([None, None, 0, 1]))
    if dtype.kind == "f":
        array = random.normal(scale=30, size=shape).astype(dtype)
        nodata = draw(st.sampled_from([nodata, np.nan]))
        array[random.random(shape) < draw(st.sampled_from([0, 0, 0.1]))] = np.nan
    else:
        limits = np.iinfo(dtype)
        far = draw(st.booleans())
        low, high = (max(limits.min, -(2**50)), min(limits.max, 2**50)) if far else (max(limits.min, -3), 4)
        array = random.integers(low, high, shape, endpoint=True).astype(dtype)
    if nodata is not None:
        array[random.random(shape) < draw(st.sampled_from([0, 0.02, 0.5, 0.9]))] = nodata
    return array, nodata


def by_blocks(array: np.ndarray, order: np.random.Generator, **told: Any) -> Path:
    """The file of blocks that come in an order of their own."""
    bands, height, width = array.shape
    classes = are_classes(array.dtype, told.get("class_names"))
    blocks = GeoTiffBlocks(None, bands=bands, height=height, width=width, dtype=array.dtype, classes=classes)
    places = [(row, col) for row in range(-(-height // 512)) for col in range(-(-width // 512))]
    for row, col in order.permutation(places).tolist():
        blocks.write(row, col, array[:, row * 512 : (row + 1) * 512, col * 512 : (col + 1) * 512])
    return blocks.finish(**told)


def names(*, classes: bool) -> dict[str, Any]:
    """What makes integers classes."""
    return {"class_names": ["land"]} if classes else {}


@pytest.mark.heavy
@settings(max_examples=16)  # not the number of a profile: that would not be scaled
@given(rasters(), st.booleans(), st.integers(0, 2**32 - 1))
def test_overviews_are_those_of_gdal(
    raster: tuple[np.ndarray, float | None],
    classes: bool,  # noqa: FBT001 - drawn
    seed: int,
) -> None:
    """Nearest and average, with and without nodata, in any order of blocks."""
    array, nodata = raster
    path = by_blocks(array, np.random.default_rng(seed), nodata=nodata, **names(classes=classes))
    try:
        found = overviews_of(path)
    finally:
        path.unlink()
    expected = by_gdal(array, nodata, Resampling.nearest if classes and array.dtype.kind != "f" else Resampling.average)
    assert len(found) == len(expected)
    for mine, others in zip(found, expected, strict=True):
        assert mine.dtype == others.dtype
        # Of half precision GDAL's own tool rounds each level before it makes the next of it.
        ulps = 2**-9 * float(np.nanmax(np.abs(array), initial=0)) if array.dtype == np.float16 else 0
        np.testing.assert_allclose(mine, others, rtol=0, atol=ulps)


@pytest.mark.heavy
@settings(max_examples=10)
@given(rasters(), st.booleans(), st.integers(0, 2**32 - 1))
def test_the_order_changes_no_bit(
    raster: tuple[np.ndarray, float | None],
    classes: bool,  # noqa: FBT001 - drawn
    seed: int,
) -> None:
    """The file is the same whichever block comes first."""
    array, nodata = raster
    random = np.random.default_rng(seed)
    paths = [by_blocks(array, random, nodata=nodata, **names(classes=classes)) for _ in range(2)]
    one, other = (path.read_bytes() for path in paths)
    for path in paths:
        path.unlink()
    assert one == other


@pytest.mark.heavy
@settings(max_examples=10)
@given(rasters(), st.booleans())
def test_statistics_are_those_of_gdal(
    raster: tuple[np.ndarray, float | None],
    classes: bool,  # noqa: FBT001 - drawn
) -> None:
    """The items of each band are what GDAL computes of the valid pixels; none where there is no such pixel."""
    array, nodata = raster
    path = by_blocks(array, np.random.default_rng(0), nodata=nodata, **names(classes=classes))
    try:
        with rasterio.open(path) as file:
            for band in file.indexes:
                assert_statistics(file, band, nodata)
    finally:
        path.unlink()


def assert_statistics(file: rasterio.DatasetReader, band: int, nodata: float | None) -> None:
    """The items of a band are those of pixels that GDAL reads as valid."""
    items = {name: text for name, text in file.tags(band).items() if name.startswith("STATISTICS_")}
    pixels = file.read(band)
    seen = pixels[(file.read_masks(band) > 0) & ~np.isnan(pixels)].astype(np.float64)
    if not seen.size:
        assert items == {}
        return
    expected = {"MINIMUM": seen.min(), "MAXIMUM": seen.max(), "MEAN": seen.mean(), "STDDEV": seen.std()}
    for name, value in expected.items():
        assert float(items[f"STATISTICS_{name}"]) == pytest.approx(value, rel=1e-9, abs=1e-9 * max(1, seen.std()))
    percent = 100 * seen.size / pixels.size
    assert float(items["STATISTICS_VALID_PERCENT"]) == pytest.approx(percent, rel=1e-3)
    assert (items["STATISTICS_VALID_PERCENT"] == "100") == (seen.size == pixels.size)
