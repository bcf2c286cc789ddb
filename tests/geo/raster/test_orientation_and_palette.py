"""TIFFs and other rasters as a viewer shows them, with Pillow as the oracle."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import tifffile
from PIL import Image
from rasterio.io import MemoryFile
from rasterio.transform import Affine

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.opened import open_raster, read_raster
from vllm_mmout.geo.raster.orientation_and_palette import as_seen
from vllm_mmout.geo.raster.raster import Raster, Window

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

RGB = np.random.default_rng(3).integers(0, 255, (17, 29, 3)).astype("uint8")


def saved(image: Image.Image, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "TIFF", **options)
    return buffer.getvalue()


def seen(data: bytes, window: Window | None = None) -> Raster:
    with as_seen(open_raster(data)) as opened:
        return opened.read(window)


def by_pillow(data: bytes) -> np.ndarray:
    """Return Pillow's colours [3, height, width]; Pillow turns a TIFF as it loads it."""
    with Image.open(BytesIO(data)) as image:
        image.load()
        return np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)


@pytest.mark.parametrize("mode", ["RGB", "P"])
@pytest.mark.parametrize("turned", range(1, 9))
def test_a_tiff_is_turned_as_pillow_turns_it(turned: int, mode: str) -> None:
    """The orientation tag turns the picture, any window of it, and is gone from the metadata."""
    exif = Image.Exif()
    exif[0x0112] = turned
    data = saved(Image.fromarray(RGB).convert(mode), exif=exif)
    expected = by_pillow(data)
    raster = seen(data)
    np.testing.assert_array_equal(raster.array, expected)
    assert "EXIF_Orientation" not in raster.metadata
    np.testing.assert_array_equal(seen(data, Window(3, 2, 7, 9)).array, expected[:, 3:10, 2:11])
    assert read_raster(data).metadata.get("EXIF_Orientation", "1") == str(turned)


def test_a_tiff_with_a_place_is_not_turned() -> None:
    """A transform counts the stored pixels: GDAL passes over the orientation tag, and so does this."""
    with MemoryFile() as memory:
        place = {"crs": "EPSG:32632", "transform": Affine(10, 0, 5e5, 0, -10, 5e6)}
        with memory.open(driver="GTiff", width=29, height=17, count=3, dtype="uint8", **place) as file:
            file.write(np.moveaxis(RGB, -1, 0))
        plain = memory.read()
    with tifffile.TiffFile(BytesIO(plain)) as tiff:
        extra = [
            (tag.code, int(tag.dtype), tag.count, tag.value, True) for tag in tiff.pages[0].tags if tag.code > 33000
        ]
    buffer = BytesIO()
    tifffile.imwrite(buffer, RGB, photometric="rgb", metadata=None, extratags=[*extra, (274, 3, 1, 6, True)])
    raster = seen(buffer.getvalue())
    np.testing.assert_array_equal(raster.array, np.moveaxis(RGB, -1, 0))
    assert raster.georeference.transform == (10, 0, 5e5, 0, -10, 5e6)


@pytest.mark.parametrize("mode", ["P", "1", "L"])
def test_values_that_stand_for_colours_are_seen_in_them(mode: str) -> None:
    """A palette and black and white are seen as Pillow shows them; read as a raster, values stay as stored."""
    data = saved(Image.fromarray(RGB).convert(mode))
    np.testing.assert_array_equal(np.broadcast_to(seen(data).array, (3, 17, 29)), by_pillow(data))
    with MemoryFile(data) as memory, memory.open() as file:
        np.testing.assert_array_equal(read_raster(data).array, file.read())


def test_grey_of_which_0_is_white_is_seen_so() -> None:
    """A fax or a scan with MinIsWhite is seen as Pillow inverts it."""
    buffer = BytesIO()
    tifffile.imwrite(buffer, RGB[..., 0], photometric="miniswhite")
    np.testing.assert_array_equal(seen(buffer.getvalue()).array, by_pillow(buffer.getvalue())[:1])


def test_nodata_of_a_palette_is_its_value() -> None:
    """A palette's nodata is a value, not a colour: it masks before colours are made."""
    image = Image.fromarray(RGB).quantize(16)
    data = saved(image, tiffinfo={42113: "3"})
    np.testing.assert_array_equal(seen(data).mask, np.asarray(image) != 3)


@pytest.mark.parametrize("mode", ["LAB", "CMYK", "YCbCr"])
@pytest.mark.parametrize("options", [{}, {"compression": "tiff_lzw"}], ids=str)
def test_other_colour_spaces_are_read_in_rgb(mode: str, options: dict[str, str]) -> None:
    """A TIFF in CIELab, CMYK or YCbCr gives the colours that Pillow gives, to one step."""
    data = saved(Image.fromarray(RGB).convert(mode), **options)
    read = read_raster(data).without_alpha().array.astype(int)
    assert np.abs(read - by_pillow(data)).max() <= 1


def test_icclab_is_cielab_that_counts_from_128() -> None:
    """ICCLab, which Pillow does not open, has the colours of the same CIELab."""
    lab = np.asarray(Image.fromarray(RGB).convert("LAB"))  # as bytes of CIELab
    buffer = BytesIO()
    tifffile.imwrite(buffer, lab ^ np.array([0, 128, 128], "uint8"), photometric="icclab")
    expected = by_pillow(saved(Image.fromarray(RGB).convert("LAB")))
    np.testing.assert_array_equal(read_raster(buffer.getvalue()).array, expected)


def test_lab_that_cannot_be_read_is_refused() -> None:
    """Lab of 16 bits would be three bands of other numbers; the error names it and the remedy."""
    buffer = BytesIO()
    tifffile.imwrite(buffer, RGB.astype("uint16"), photometric="cielab")
    with pytest.raises(InputError, match=r"CIELAB.*convert it to RGB"):
        read_raster(buffer.getvalue())
