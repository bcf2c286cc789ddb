"""The fast decoders give what GDAL gives, and leave everything odd to tifffile."""

from __future__ import annotations

from io import BytesIO
from unittest.mock import patch

import imagecodecs
import numpy as np
import pytest
import tifffile
from geotiffs_by_rasterio import geotiff
from rasterio.io import MemoryFile

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.plain_codecs import PlainDecoder

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

VALUES = np.random.default_rng(5).normal(300, 90, (3, 70, 90))
KINDS = [("uint8", 1), ("uint8", 2), ("int16", 2), ("uint32", 2), ("int64", 2), ("float32", 1), ("float32", 3)]


def _tifffile_is_not_used(data: bytes) -> np.ndarray:
    """Read a TIFF, and fail if any segment is left to tifffile."""
    with open_raster(data) as opened, patch("vllm_mmout.geo.raster.segments.Segments._pixels", side_effect=OSError):
        return opened.read().array


@pytest.mark.parametrize("interleave", ["pixel", "band"])
@pytest.mark.parametrize(("dtype", "predictor"), [*KINDS, ("float64", 3)], ids=str)
@pytest.mark.parametrize("compress", ["deflate", "zstd", "lzw", "none"])
def test_common_compressions_are_decoded_as_by_gdal(compress, dtype, predictor, interleave) -> None:
    """Tiles, strips and the short last strip are decoded without tifffile."""
    options = {} if compress == "none" else {"compress": compress, "predictor": predictor}
    for layout in ({"tiled": True, "blockxsize": 32, "blockysize": 16}, {"blockysize": 16}):
        data = geotiff(VALUES.astype(dtype), interleave=interleave, **options, **layout)
        with MemoryFile(data) as memory, memory.open() as file:
            np.testing.assert_array_equal(_tifffile_is_not_used(data), file.read(), strict=True)


@pytest.mark.parametrize("options", [{"ENDIANNESS": "BIG"}, {"NBITS": 12}, {"compress": "packbits"}], ids=str)
def test_other_storage_is_left_to_tifffile(options) -> None:
    """Swapped bytes, packed bits and rare compressions are read as before."""
    array = VALUES.clip(0, 4095).astype("uint16")
    with (
        patch.object(PlainDecoder, "__call__", side_effect=AssertionError),
        open_raster(geotiff(array, **options)) as opened,
    ):
        np.testing.assert_array_equal(opened.read().array, array, strict=True)


CODECS = {
    "adobe_deflate": imagecodecs.deflate_encode,
    "zstd": imagecodecs.zstd_encode,
    "lzw": imagecodecs.lzw_encode,
}


def _of_one_tile(stored: bytes, compression: str) -> bytes:
    """A TIFF of 16 x 16 bytes whose only tile is stored as given."""
    buffer = BytesIO()
    layout = {"shape": (16, 16), "dtype": "uint8", "tile": (16, 16), "compression": compression, "metadata": None}
    tifffile.imwrite(buffer, iter([stored]), **layout)
    return buffer.getvalue()


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("damage", ["cut", "few", "zeros", "noise"])
def test_damaged_segments_are_refused(compression, damage) -> None:
    """A decoder of libtiff or libdeflate that gives up is followed by tifffile's, which names the fault."""
    whole = CODECS[compression](np.random.default_rng(3).integers(0, 9, 256, np.uint8).tobytes())
    stored = {
        "cut": whole[: len(whole) // 2],
        "few": CODECS[compression](bytes(100)),
        "zeros": bytes(len(whole)),
        "noise": np.random.default_rng(2).bytes(len(whole)),
    }[damage]
    with (
        open_raster(_of_one_tile(stored, compression)) as opened,
        pytest.raises(InputError, match="is a damaged TIFF: the tile of rows 0 to 15, columns 0 to 15: "),
    ):
        opened.read()


@pytest.mark.parametrize("compression", CODECS)
def test_a_segment_that_unpacks_to_far_more_than_it_should_is_bounded(compression) -> None:
    """A tile of 16 x 16 that unpacks to 16 MiB is refused, or cut where libtiff stops too."""
    with open_raster(_of_one_tile(CODECS[compression](bytes(2**24)), compression)) as opened:
        if compression == "lzw":
            assert not opened.read().array.any()
            return
        with pytest.raises(InputError, match="is a damaged TIFF"):
            opened.read()
