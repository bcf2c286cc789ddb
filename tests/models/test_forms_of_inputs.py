"""Forms in which arrays, PIL images and files come: right, or refused with the form and the remedy."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps

from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.params import OutputParams

SIX = RasterMapper("net", tuple("abcdef"), 64)
RNG = np.random.default_rng(2)
RGB = RNG.integers(0, 255, (17, 29, 3)).astype("uint8")


class Pictures(RasterMapper):
    """Pictures in colours, as models of transformers take them."""

    __slots__ = ()

    @property
    def one_for_all(self) -> bool:
        """Grey stands for all three colours."""
        return True


PICTURES = Pictures("net", ("red", "green", "blue"), 64)


def pixels(mapper: RasterMapper, data: object, **options: object) -> np.ndarray:
    return mapper(data, OutputParams(**options)).tensors["pixel_values"]


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">u2", ">i2"])
def test_arrays_of_the_other_byte_order_are_read_as_their_values(dtype: str) -> None:
    """A big-endian array, as FITS and NetCDF 3 have it, is what the same array in native order is."""
    values = RNG.uniform(0, 200, (6, 8, 9)).astype(dtype)
    found = pixels(SIX, values)
    np.testing.assert_array_equal(found, pixels(SIX, values.astype(values.dtype.newbyteorder("="))))
    assert found.dtype.isnative


@pytest.mark.parametrize(
    ("mapper", "shape", "options"),
    [(SIX, (48, 64, 6), {}), (PICTURES, (48, 64, 3), {}), (PICTURES, (48, 64, 4), {}), (PICTURES, (48, 64, 1), {}),
     (PICTURES, (48, 64, 3), {"bands": [3, 2, 1]})],
)  # fmt: skip
def test_bands_at_the_end_are_refused_with_the_remedy(
    mapper: RasterMapper, shape: tuple[int, ...], options: dict[str, object]
) -> None:
    """An array [height, width, bands] is no raster of as many bands as it has rows, not even of chosen ones."""
    with pytest.raises(InputError, match=r"\[height, width, bands\]: give np.moveaxis\(array, -1, 0\)"):
        pixels(mapper, np.zeros(shape, np.uint8), **options)


@pytest.mark.parametrize("shape", [(3, 3, 64), (3, 64, 3), (3, 3, 3), (3, 1, 64), (1, 5, 3)])
def test_bands_at_the_start_are_read_whatever_the_size(shape: tuple[int, ...]) -> None:
    """An array [bands, height, width] that is as wide as a picture has bands is read as documented."""
    array = RNG.integers(0, 255, shape).astype("uint8")
    np.testing.assert_array_equal(pixels(PICTURES, array), np.broadcast_to(array, (3, *shape[1:])))


@pytest.mark.parametrize("options", [{}, {"imagej": True, "metadata": {"axes": "CYX"}}, {"metadata": {"axes": "CYX"}}])
def test_a_page_for_each_band_is_named_with_the_remedy(options: dict[str, object], tmp_path) -> None:
    """A TIFF with a page a band has one band for GDAL; the error says that it has pages, and what to give."""
    array = np.arange(6 * 8 * 9, dtype=np.uint16).reshape(6, 8, 9)
    tifffile.imwrite(tmp_path / "six.tif", array, photometric="minisblack", **options)
    with pytest.raises(InputError, match=r"holds 6 images \(pages\), and only the first .* as tifffile.imread reads"):
        pixels(SIX, tmp_path / "six.tif")
    np.testing.assert_array_equal(pixels(SIX, tifffile.imread(tmp_path / "six.tif")), array)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("turned", [1, 3, 5, 6, 8])
def test_a_pil_image_is_turned_as_its_file_is(form: str, turned: int) -> None:
    """Image.open of a picture is seen upright, as its bytes are; a raster model takes both as stored."""
    exif = Image.Exif()
    exif[0x0112] = turned
    buffer = BytesIO()
    Image.fromarray(RGB).save(buffer, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
    with Image.open(BytesIO(buffer.getvalue())) as image:
        image.load()
        upright = np.moveaxis(np.asarray(ImageOps.exif_transpose(image)), -1, 0)
    with Image.open(BytesIO(buffer.getvalue())) as image:
        np.testing.assert_array_equal(pixels(PICTURES, image), upright)
    np.testing.assert_array_equal(pixels(PICTURES, buffer.getvalue()), upright)


@pytest.mark.parametrize("mode", ["P", "1", "LAB", "CMYK", "YCbCr"])
def test_a_tiff_is_seen_in_the_colours_that_pillow_shows(mode: str) -> None:
    """A picture model gets colours for palettes, black and white, Lab, inks and YCbCr of a TIFF."""
    buffer = BytesIO()
    Image.fromarray(RGB).convert(mode).save(buffer, "TIFF")
    with Image.open(buffer) as image:
        expected = np.moveaxis(np.asarray(image.convert("RGB")), -1, 0).astype(int)
    assert np.abs(pixels(PICTURES, buffer.getvalue()).astype(int) - expected).max() <= 1


def test_a_picture_that_is_not_turned_and_a_first_page_are_said(tmp_path) -> None:
    """A raster model takes a turned picture as stored, and the first of several pages; the input says both."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RGB).save(tmp_path / "turned.tif", exif=exif)
    tifffile.imwrite(tmp_path / "pages.tif", RGB[..., :2].transpose(2, 0, 1), photometric="minisblack")
    colours = RasterMapper("net", ("red", "green", "blue"), 64)
    with colours.open(tmp_path / "turned.tif", OutputParams()) as view:
        assert view.size == (17, 29)
        assert "was read as it is stored" in " ".join(view.assumed)
    with Image.open(tmp_path / "turned.tif") as image, PICTURES.open(image, OutputParams()) as view:
        assert (view.size, view.assumed) == ((29, 17), ())
    with RasterMapper("net", ("grey",), 64).open(tmp_path / "pages.tif", OutputParams()) as view:
        assert "2 images (pages), and only the first is read" in " ".join(view.assumed)
