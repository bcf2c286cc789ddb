"""GeoTIFF by blocks against GeoTIFF at once, with rasterio as the judge of both."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio.rpc import RPC

from vllm_mmout.geo import Georeference, are_classes, write_geotiff
from vllm_mmout.geo.raster.writing import GeoTiffBlocks
from vllm_mmout.testing import rasters

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", ">f8")
SIDES = st.sampled_from([1, 511, 512, 513, 1100]) | st.integers(1, 1300)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any]]:
    """Pixels that fill several blocks or less than one, and all that can be said of them."""
    small = draw(rasters(bands=(1, 3), height=1, width=1, dtypes=("uint8",)))
    bands, seed = small.bands, draw(st.integers(0, 2**32 - 1))
    numbers = np.random.default_rng(seed).normal(scale=30, size=(bands, draw(SIDES), draw(SIDES)))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    array = (np.abs(numbers) if dtype.kind == "u" else numbers).astype(dtype)
    known = {
        "georeference": (draw(st.booleans()) and with_rpcs(small.georeference)) or small.georeference,
        "nodata": draw(st.none() | st.sampled_from([0, 1])),
        "band_names": small.descriptions,
        "units": draw(st.lists(st.sampled_from([None, "m", "Mg/ha"]), min_size=bands, max_size=bands)),
        "class_names": draw(st.none() | st.just(["land", "water & ice"])),
        "metadata": small.metadata,
    }
    if bands == 1 and array.dtype in (np.uint8, np.bool_):
        known["palette"] = draw(st.none() | st.just(np.arange(30, dtype="uint8").reshape(10, 3)))
    return array, known


def with_rpcs(place: Georeference | None) -> Georeference:
    """A place that has rational polynomial coefficients as well."""
    rpcs = RPC(*[0.25] * 4, *[[1.25] * 20] * 2, *[2.25] * 4, *[[3.25] * 20] * 2, 4.25, 5.25, 6.25, 7.25)
    return replace(place or Georeference(), rpcs=rpcs)


def by_blocks(array: np.ndarray, known: dict[str, Any], order: np.random.Generator) -> bytes:
    """The file of blocks that come in an order of their own."""
    bands, height, width = array.shape
    classes = are_classes(array.dtype, known["class_names"], known.get("palette"))
    blocks = GeoTiffBlocks(None, bands=bands, height=height, width=width, dtype=array.dtype, classes=classes)
    side = blocks.block
    places = [(row, col) for row in range(-(-height // side)) for col in range(-(-width // side))]
    for row, col in order.permutation(places).tolist():
        blocks.write(row, col, array[:, row * side : (row + 1) * side, col * side : (col + 1) * side])
    path = blocks.finish(**known)
    data = path.read_bytes()
    path.unlink()
    return data


@settings(max_examples=30)
@given(scenes(), st.integers(0, 2**32 - 1))
def test_a_file_of_blocks_in_any_order_is_that_of_the_whole_array(
    scene: tuple[np.ndarray, dict[str, Any]], seed: int
) -> None:
    """The bytes are those of write_geotiff, and rasterio reads the pixels that were written."""
    array, known = scene
    data = by_blocks(array, known, np.random.default_rng(seed))
    whole = BytesIO()
    write_geotiff(whole, array, **known)
    assert data == whole.getvalue()
    with rasterio.open(BytesIO(data)) as file:
        stored = np.uint8 if array.dtype == np.bool_ else array.dtype
        np.testing.assert_array_equal(file.read(), array.astype(stored))
        assert file.compression.value == "DEFLATE"
