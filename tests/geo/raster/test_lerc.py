"""LERC, in which NaN and alpha are masks, with rasterio as the judge."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from geotiffs_by_rasterio import geotiff
from rasterio.io import MemoryFile
from tifffile import TiffFile

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Window

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.mark.parametrize("interleave", ["pixel", "band"])
@pytest.mark.parametrize("compress", ["lerc", "lerc_deflate", "lerc_zstd"])
@pytest.mark.parametrize("bands", ["one", "alike", "different", "none"])
def test_lerc_gives_nan_back(bands: str, compress: str, interleave: str) -> None:
    """NaN, which LERC keeps as a mask, comes back where it was, be it in all bands or in each elsewhere."""
    array = np.random.default_rng(4).normal(size=(1 if bands == "one" else 3, 20, 30)).astype("float32")
    array[:, 3:9, 4] = np.nan if bands != "none" else 0
    if bands == "different":
        array[1, 15:] = np.nan
    data = geotiff(array, compress=compress, interleave=interleave, blockysize=7)
    with open_raster(data) as opened:
        np.testing.assert_array_equal(opened.read().array, array, strict=True)
        np.testing.assert_array_equal(opened.read(Window(6, 2, 12, 5)).array, array[:, 6:18, 2:7])


@pytest.mark.parametrize("opaque", [True, False])
@pytest.mark.parametrize("bands", [2, 4])
def test_lerc_gives_alpha_back(bands: int, opaque: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """An alpha band of 0 and 255, which LERC keeps as a mask, is a band again, as for rasterio."""
    array = np.random.default_rng(4).integers(0, 255, (bands, 20, 30)).astype("uint8")
    array[-1] = 255 if opaque else (array[-1] > 100) * 255
    data = geotiff(
        array, compress="lerc", interleave="pixel", photometric="rgb" if bands == 4 else "minisblack", alpha="yes"
    )
    with open_raster(data) as opened, MemoryFile(data) as memory, memory.open() as file:
        raster = opened.read()
        np.testing.assert_array_equal(raster.array, file.read(), strict=True)
        np.testing.assert_array_equal(raster.mask, array[-1] > 0)


def _pixels_or_error(data: bytes) -> np.ndarray | str:
    try:
        with open_raster(data) as opened:
            return opened.read().array
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("compress", ["lerc", "lerc_deflate", "lerc_zstd"])
def test_a_flipped_byte_is_damage_of_the_file(compress: str) -> None:
    """Wherever a byte of the strip is flipped, that is an error that names the strip, or a strip of the same size."""
    array = np.random.default_rng(4).normal(size=(1, 8, 8)).astype("float32")
    data = bytearray(geotiff(array, compress=compress))
    with TiffFile(BytesIO(data)) as file:
        start, count = file.pages[0].dataoffsets[0], file.pages[0].databytecounts[0]
    found = []
    for at in range(start, start + count):
        data[at] ^= 0xFF
        found.append(_pixels_or_error(bytes(data)))
        data[at] ^= 0xFF
    errors = [error for error in found if isinstance(error, str)]
    assert errors
    assert all("is a damaged TIFF: the strip of rows 0 to 7" in error for error in errors)
    assert {pixels.shape for pixels in found if isinstance(pixels, np.ndarray)} <= {array.shape}
