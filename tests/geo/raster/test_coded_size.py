"""The size that coded pictures say they have, as their encoders wrote it."""

from __future__ import annotations

import imagecodecs
import numpy as np
import pytest

from vllm_mmout.geo.raster.coded_headers import coded_size

ENCODERS = {
    "jpeg": imagecodecs.jpeg8_encode,
    "png": imagecodecs.png_encode,
    "jpeg 2000": imagecodecs.jpeg2k_encode,
    "jpeg 2000, codestream": lambda array: imagecodecs.jpeg2k_encode(array, codecformat="j2k"),
    "jpeg xl": imagecodecs.jpegxl_encode,
    "jpeg xl, container": lambda array: imagecodecs.jpegxl_encode(array, usecontainer=True),
    "jpeg xr": imagecodecs.jpegxr_encode,
    "webp": imagecodecs.webp_encode,
    "webp lossless": lambda array: imagecodecs.webp_encode(array, lossless=True),
    "lerc": imagecodecs.lerc_encode,
    "lerc, a band after the other": lambda array: b"".join(
        map(imagecodecs.lerc_encode, array.reshape(-1, *array.shape[:2]))
    ),
}
SIZES = [(40, 56), (64, 64), (48, 40), (255, 513), (300, 400), (16, 9001)]


@pytest.mark.parametrize("bands", [1, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", list(ENCODERS))
def test_sizes(kind, size, bands):
    """Of each codec, small and large, square and not, of one band (WebP has colours always) and of three."""
    bands = 3 if "webp" in kind else bands
    array = np.random.default_rng(1).integers(0, 256, size if bands == 1 else (*size, bands), np.uint8)
    found = coded_size(ENCODERS[kind](array))
    assert found is not None
    assert found[:2] == size
    assert found[2] >= array.size


@pytest.mark.parametrize("encode", [imagecodecs.jpegls_encode, imagecodecs.ljpeg_encode])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_of_lossless_jpeg(size, encode):
    """JPEG-LS, and the lossless process of JPEG."""
    assert coded_size(encode(np.zeros(size, np.uint8))) == (*size, size[0] * size[1])


@pytest.mark.parametrize("kind", list(ENCODERS))
def test_what_ends_too_early(kind):
    """Says its size or none, wherever it ends."""
    data = ENCODERS[kind](np.zeros((40, 56, 3), np.uint8))
    for end in range(min(len(data), 300)):
        assert coded_size(data[:end]) is None or coded_size(data[:end])[2] >= 0


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\xff\xd8\xff\xda\0\x08", b"hello", b"\0" * 100, b"\x78\x9c"])
def test_what_is_no_picture(data):
    """Has no size."""
    assert coded_size(data) is None
