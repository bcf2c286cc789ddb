"""ImageOutput: pictures in every format, with Pillow as the oracle."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.outputs import ImageOutput
from vllm_mmout.outputs.formats import FORMATS

RNG = np.random.default_rng(1)
GREY = RNG.integers(0, 255, (20, 30)).astype("uint8")
RGB = RNG.integers(0, 255, (20, 30, 3)).astype("uint8")
RGBA = RNG.integers(0, 255, (20, 30, 4)).astype("uint8")
SHAPES = st.tuples(st.integers(1, 30), st.integers(1, 30)).flatmap(
    lambda size: st.sampled_from([size, (*size, 3), (*size, 4)])
)


def decoded(data: bytes) -> np.ndarray:
    with Image.open(BytesIO(data)) as image:
        return np.asarray(image)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays("uint8", SHAPES), st.sampled_from(["png", "tiff"]))
def test_lossless_formats_give_the_samples_back(array: np.ndarray, name: str) -> None:
    """PNG and TIFF hold any picture to the last bit."""
    np.testing.assert_array_equal(decoded(ImageOutput(array).to_bytes(name)), array, strict=True)


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        (".png", "PNG"),
        (".jpg", "JPEG"),
        (".JPEG", "JPEG"),
        (".webp", "WEBP"),
        (".avif", "AVIF"),
        (".tif", "TIFF"),
        (".tiff", "TIFF"),
    ],
)
def test_the_suffix_tells_the_format(tmp_path: Path, suffix: str, kind: str) -> None:
    """The path comes back, and the file has the format that its suffix names, in either case."""
    target = tmp_path / f"picture{suffix}"
    assert ImageOutput(RGB).save(str(target)) == target
    with Image.open(target) as image:
        assert (image.format, image.size, image.mode) == (kind, (30, 20), "RGB")


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.lossy])
def test_quality_is_what_pillow_makes_of_it(name: str) -> None:
    """A quality gives Pillow's own bytes; a higher one gives more of them; without one it is 90."""
    output = ImageOutput(RGB)
    expected = BytesIO()
    Image.fromarray(RGB).save(expected, name, quality=40)
    assert output.to_bytes(name, quality=40) == expected.getvalue()
    assert len(output.to_bytes(name, quality=40)) < len(output.to_bytes(name))
    assert output.to_bytes(name) == output.to_bytes(name, quality=90)


def test_webp_keeps_alpha() -> None:
    """Transparency goes into WebP."""
    np.testing.assert_array_equal(decoded(ImageOutput(RGBA).to_bytes("webp"))[..., 3], RGBA[..., 3])


def test_it_shows_itself_in_notebooks() -> None:
    """_repr_png_ is the PNG of the picture, .image the picture of Pillow, and the repr tells size and mode."""
    for array, mode in ((GREY, "L"), (RGB, "RGB"), (RGBA, "RGBA")):
        output = ImageOutput(array)
        np.testing.assert_array_equal(decoded(output._repr_png_()), array)
        np.testing.assert_array_equal(np.asarray(output.image), array)
        assert output.image.mode == output.mode == mode
        assert repr(output) == f"ImageOutput(30 x 20 {mode})"
        assert (output.width, output.height, output.path) == (30, 20, None)


def test_the_repr_names_the_file() -> None:
    """An output that was written says where."""
    output = ImageOutput(GREY)
    output.path = "out/picture.png"
    assert repr(output) == "ImageOutput(30 x 20 L, path='out/picture.png')"


def test_arrays_that_are_not_contiguous_are_pictures_too() -> None:
    """A view that is turned over is written as it looks."""
    np.testing.assert_array_equal(decoded(ImageOutput(RGB[::-1, ::2]).to_bytes()), RGB[::-1, ::2])


def test_outputs_are_equal_only_to_themselves() -> None:
    """Two pictures of the same content are two results, both usable as keys."""
    first, second = ImageOutput(GREY), ImageOutput(GREY)
    assert first == first  # noqa: PLR0124 - the identity is the point
    assert first != second
    assert len({first, second}) == 2


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4), "float32"),
        np.zeros((4, 4, 2), "uint8"),
        np.zeros((4, 4, 1), "uint8"),
        np.zeros((3, 4, 5), "uint8"),
        np.zeros((0, 4), "uint8"),
        np.zeros(4, "uint8"),
    ],
)
def test_what_is_no_picture_is_refused(array: np.ndarray) -> None:
    """The error names dtype and shape that came, and those that are taken."""
    with pytest.raises(InputError, match=r"takes uint8 \[height, width\].*; got " + str(array.dtype)):
        ImageOutput(array)


@pytest.mark.parametrize(
    ("array", "name", "options", "words"),
    [
        (RGBA, "jpeg", {}, "JPEG has no transparency"),
        (RGB, "png", {"quality": 80}, "png has no quality; leave it out, or save as WebP"),
        (RGB, "tiff", {"quality": 80}, "tiff has no quality"),
        (RGB, "jpeg", {"quality": 0}, "quality must be an integer from 1 to 100, got 0"),
        (RGB, "jpeg", {"quality": True}, "got True"),
        (RGB, "webp", {"quality": 0.9}, "got 0.9"),
        (RGB, "webp", {"level": 3}, r"unknown option level for webp \(known: quality"),
        (RGB, "heic", {}, r"ImageOutput cannot be written as 'heic' \(known: png, webp, jpeg, .*tiff\)"),
        (np.zeros((1, 17000), "uint8"), "webp", {}, "webp cannot hold a picture of 17000 x 1"),
    ],
)
def test_what_a_format_cannot_do_is_refused(
    array: np.ndarray, name: str, options: dict[str, object], words: str
) -> None:
    """The error says what the format cannot hold, and what to do instead."""
    with pytest.raises(SaveError, match=words):
        ImageOutput(array).to_bytes(name, **options)


@pytest.mark.parametrize("name", ["picture.bmp", "picture", ".png"])
def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    """Nothing is written, and the error lists the suffixes."""
    with pytest.raises(
        SaveError, match=r"(has no suffix|is unknown) \(known: \.png, \.webp, \.jpg, \.jpeg, .*\.tif, \.tiff\)"
    ):
        ImageOutput(RGB).save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    """A picture that JPEG cannot hold leaves nothing behind."""
    with pytest.raises(SaveError, match="save it as PNG"):
        ImageOutput(RGBA).save(tmp_path / "a.jpg")
    assert list(tmp_path.iterdir()) == []
