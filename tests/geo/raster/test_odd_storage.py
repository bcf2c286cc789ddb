"""Files whose strips and tiles lie in unusual ways, all the same readable."""

from __future__ import annotations

import struct
from io import BytesIO

import numpy as np
import pytest
import tifffile
from geotiffs_by_rasterio import ARRAY, TILED, geotiff
from rasterio.io import MemoryFile

from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Window

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

LARGE = np.random.default_rng(8).integers(0, 999, (2, 900, 1500)).astype("int16")


@pytest.mark.parametrize("interleave", ["pixel", "band"])
@pytest.mark.parametrize("rows", [1, 150, 450])
def test_strips_in_another_order_than_their_rows(rows: int, interleave: str) -> None:
    """Uncompressed strips that do not follow each other are read each from its own place, in pieces where large."""
    data = bytearray(geotiff(LARGE, blockysize=rows, interleave=interleave))
    with tifffile.TiffFile(BytesIO(data)) as file:
        page = file.pages[0]
        offsets, size = list(page.dataoffsets), page.databytecounts[0]
        table = page.tags[273].valueoffset
    first, second = (slice(offset, offset + size) for offset in offsets[:2])
    data[first], data[second] = data[second], data[first]
    struct.pack_into("<II", data, table, offsets[1], offsets[0])
    with open_raster(bytes(data)) as opened:
        np.testing.assert_array_equal(opened.read().array, LARGE)
        np.testing.assert_array_equal(opened.read(Window(140, 70, 320, 9)).array, LARGE[:, 140:460, 70:79])


def test_a_tile_without_bytes_is_not_stored() -> None:
    """A tile with a place but no length counts as one that is not stored, as for rasterio."""
    data = bytearray(geotiff(**TILED, nodata=9))
    with tifffile.TiffFile(BytesIO(data)) as file:
        counts = file.pages[0].tags[325]
        width = 2 if counts.dtype == 3 else 4
        data[counts.valueoffset + 5 * width : counts.valueoffset + 6 * width] = bytes(width)
    with open_raster(bytes(data)) as opened, MemoryFile(bytes(data)) as memory, memory.open() as theirs:
        array = opened.read().array
        np.testing.assert_array_equal(array, theirs.read())
        assert (array == 9).sum() >= 16 * 32


def test_a_tile_that_is_stored_only_as_far_as_the_image_goes() -> None:
    """Some writers cut the tiles at the edges; an uncompressed one that is large is then read as a whole."""
    array = LARGE[:1, :500, :400]
    data = bytearray(geotiff(array, tiled=True, blockxsize=1024, blockysize=1024))
    with tifffile.TiffFile(BytesIO(data)) as file:
        page = file.pages[0]
        at, counts = page.dataoffsets[0], page.tags[325].valueoffset
    data[at : at + array.nbytes] = array.tobytes()
    struct.pack_into("<I", data, counts, array.nbytes)
    with open_raster(bytes(data)) as opened:
        np.testing.assert_array_equal(opened.read(Window(99, 50, 300, 200)).array, array[:, 99:399, 50:250])


def test_a_mask_of_another_size_belongs_to_another_image() -> None:
    """A transparency mask that has not the size of the image is not taken for its mask."""
    buffer = BytesIO()
    with tifffile.TiffWriter(buffer) as file:
        file.write(ARRAY[0], photometric="minisblack", metadata=None)
        file.write(np.ones((48, 64), "uint8"), photometric="minisblack", subfiletype=1, metadata=None)
    data = bytearray(buffer.getvalue())
    struct.pack_into("<HHII", data, data.index(struct.pack("<HHII", 254, 4, 1, 1)), 254, 4, 1, 4)
    with open_raster(bytes(data)) as opened:
        assert opened.read(Window(3, 3, 9, 9)).mask is None
