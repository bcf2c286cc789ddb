"""Reading PNG, JPEG, WebP and other pictures, with Pillow and rasterio as oracles."""

from __future__ import annotations

from io import BytesIO

import imagecodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageOps
from rasterio.io import MemoryFile

from vllm_mmout.geo.raster.opened import open_raster, read_raster
from vllm_mmout.geo.raster.orientation_and_palette import as_seen

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

RNG = np.random.default_rng(5)
RGB = RNG.integers(0, 255, (30, 41, 3)).astype("uint8")


def encoded(image: Image.Image, name: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, name, **options)
    return buffer.getvalue()


def by_pillow(data: bytes, mode: str | None = None) -> np.ndarray:
    """Pillow's pixels, [bands, height, width]."""
    with Image.open(BytesIO(data)) as image:
        array = np.asarray(image if mode is None else image.convert(mode))
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)


@settings(max_examples=60, deadline=None)
@given(
    array=hnp.arrays("uint8", st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 3, 4]))),
    name=st.sampled_from(["PNG", "WEBP", "JPEG", "BMP", "JPEG2000"]),
)
def test_pictures_come_as_pillow_decodes_them(array: np.ndarray, name: str) -> None:
    """Any picture of 8 bits, in any format, has the samples that Pillow gives, bands first."""
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[array.shape[2]]
    image = Image.fromarray(array[..., 0] if mode == "L" else array)
    if mode in ("LA", "RGBA") and name in ("JPEG", "BMP", "JPEG2000"):
        image = image.convert(mode[:-1])
    data = encoded(image, name, lossless=True) if name == "WEBP" else encoded(image, name)
    raster = read_raster(data)
    np.testing.assert_array_equal(raster.array, by_pillow(data), strict=True)
    assert raster.georeference is None
    assert raster.nodata is None


@pytest.mark.parametrize(("name", "options"), [("PNG", {}), ("JPEG", {"quality": 95, "subsampling": 0})])
def test_rasterio_sees_the_same_bands(name: str, options: dict[str, int]) -> None:
    """Order of bands, rows and columns is rasterio's; two JPEG decoders may round differently."""
    data = encoded(Image.fromarray(RGB), name, **options)
    with MemoryFile(data) as memory, memory.open() as file:
        difference = read_raster(data).array.astype(int) - file.read()
    assert np.abs(difference).max() <= (2 if name == "JPEG" else 0)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_sixteen_bits_of_a_png_are_kept(channels: int) -> None:
    """PNGs of 16 bits keep every digit, also in colour, where Pillow would cut them to 8."""
    deep = RNG.integers(0, 65535, (20, 30, channels)).astype("uint16")
    data = imagecodecs.png_encode(deep[..., 0] if channels == 1 else deep)
    with MemoryFile(data) as memory, memory.open() as file:
        np.testing.assert_array_equal(read_raster(data).array, file.read(), strict=True)
    np.testing.assert_array_equal(read_raster(data).array, np.moveaxis(deep, 2, 0))


def test_a_palette_becomes_its_colours() -> None:
    """A picture with a palette is seen as the RGB picture that it shows."""
    image = Image.fromarray(RGB).quantize(16)
    for name in ("PNG", "GIF"):
        data = encoded(image, name)
        np.testing.assert_array_equal(read_raster(data).array, by_pillow(data, "RGB"), strict=True)


@pytest.mark.parametrize("mode", ["P", "RGB", "L", "1"])
def test_a_transparent_colour_becomes_alpha(mode: str) -> None:
    """A colour that a PNG declares transparent masks its pixels, whatever the mode."""
    array = np.zeros((6, 8, 3), "uint8")
    array[:, 4:] = 255
    image = Image.fromarray(array).convert(mode)
    key = (0, 0, 0) if mode == "RGB" else image.getpixel((0, 0))
    raster = read_raster(encoded(image, "PNG", transparency=key))
    assert raster.alpha == raster.bands
    np.testing.assert_array_equal(raster.mask, array[..., 0] == 255)
    np.testing.assert_array_equal(raster.without_alpha().array[0], array[..., 0])


@pytest.mark.parametrize(("mode", "name"), [("CMYK", "JPEG"), ("1", "PNG"), ("I;16", "PNG"), ("L", "JPEG")])
def test_other_modes_become_bands(mode: str, name: str) -> None:
    """CMYK becomes RGB, bilevel becomes grey, 16-bit grey stays."""
    deep = Image.fromarray(RGB[..., 0].astype("uint16") * 200)
    data = encoded(deep if mode == "I;16" else Image.fromarray(RGB).convert(mode), name)
    expected = by_pillow(data, {"CMYK": "RGB", "1": "L"}.get(mode))
    np.testing.assert_array_equal(read_raster(data).array, expected)
    assert read_raster(data).array.dtype == ("uint16" if mode == "I;16" else "uint8")


def test_alpha_masks_what_is_fully_transparent() -> None:
    """Where alpha is 0 there is nothing; half transparent pixels are there."""
    alpha = np.full((30, 41, 1), 128, "uint8")
    alpha[:5] = 0
    raster = read_raster(encoded(Image.fromarray(np.concatenate([RGB, alpha], axis=2)), "PNG"))
    np.testing.assert_array_equal(raster.valid(), alpha[..., 0] > 0)


def test_the_orientation_is_the_stored_one() -> None:
    """An EXIF orientation does not turn the pixels: a result lies on the picture as it is stored."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(RGB), "JPEG", exif=exif)
    assert read_raster(data).array.shape == (3, 30, 41)


@pytest.mark.parametrize("turned", range(1, 9))
def test_a_picture_is_turned_as_pillow_turns_it(turned: int) -> None:
    """Where a caller asks for it; the metadata, which says so as GDAL's do, is then gone."""
    exif = Image.Exif()
    exif[0x0112] = turned
    alpha = np.arange(30 * 41, dtype="uint8").reshape(30, 41, 1) % 3
    data = encoded(Image.fromarray(np.concatenate([RGB, alpha], axis=2)), "PNG", exif=exif)
    with as_seen(open_raster(data)) as opened:
        seen = opened.read()
    with Image.open(BytesIO(data)) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture))
    np.testing.assert_array_equal(seen.array, np.moveaxis(expected, -1, 0))
    np.testing.assert_array_equal(seen.valid(), expected[..., 3] > 0)
    assert "EXIF_Orientation" not in seen.metadata


def test_of_a_moving_picture_the_first_frame_is_read() -> None:
    """An animated GIF gives its first frame."""
    frames = [Image.fromarray(np.full((4, 5), shade, "uint8")) for shade in (10, 200)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert set(read_raster(data).array.ravel()) == {10}
