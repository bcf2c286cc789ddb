"""Overviews and statistics of rasters that come in rectangles, whose nodata shows late."""

from __future__ import annotations

from io import BytesIO
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tifffile import TiffFile

from vllm_mmout.geo import write_geotiff
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.canvas import Canvas

SIZE = (1100, 1300)
OTHERS = ("float64", "int16")
"""Types of pixels whose means are computed as those of float32 and int64 are."""
ALL = ("float32", "uint8", "int64", *OTHERS)
PIECES = [(row, col) for row in range(0, 1100, 300) for col in range(0, 1300, 400)]


def painted(folder: Path, array: np.ndarray, valid: np.ndarray | None, order: int, **known: object) -> bytes:
    """The file of an array that comes in rectangles, from the top where ``order`` is 0; invalid ones are left out."""
    whole = RasterOutput(array, **known)
    canvas = Canvas(folder, SIZE, whole)
    for row, col in np.random.default_rng(order).permutation(PIECES).tolist() if order else PIECES:
        here = (slice(row, row + 300), slice(col, col + 400))
        piece = RasterOutput(array[:, *here], **known)
        seen = None if valid is None else valid[here]
        if seen is not None and not seen.any():
            canvas.leave_out(row, col, piece.height, piece.width)
        else:
            canvas.put(row, col, piece, seen)
    raster = canvas.finish(None, {})
    try:
        return raster.to_bytes("tif")
    finally:
        raster.close()


def whole(array: np.ndarray, **told: object) -> bytes:
    buffer = BytesIO()
    write_geotiff(buffer, array, **told)
    return buffer.getvalue()


def overview(data: bytes) -> np.ndarray:
    """The first overview of a file."""
    with TiffFile(BytesIO(data)) as tiff:
        return tiff.pages[1].asarray()


def hole(rows: int) -> np.ndarray:
    """Valid but for some rows at the end, and all of a rectangle there."""
    valid = np.ones(SIZE, bool)
    valid[SIZE[0] - rows :] = False
    valid[900:, :400] = False
    return valid


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("dtype", "masked", "order"),
    [
        *(("uint8", masked, order) for masked in (False, True) for order in (0, 1)),
        *((dtype, masked, order) for dtype in ("float32", "int64") for masked, order in ((False, 0), (True, 1))),
        *(
            pytest.param(dtype, masked, order, marks=pytest.mark.slow)
            for dtype, masked, order in product(ALL, (False, True), (0, 1, 2))
            if order == 2 or dtype in OTHERS or (dtype != "uint8" and masked != bool(order))
        ),
    ],
)
def test_means_leave_out_what_was_masked_at_last(
    tmp_path: Path,
    dtype: str,
    masked: bool,  # noqa: FBT001 - a parameter
    order: int,
) -> None:
    """Without a nodata of its own the file is that of the whole array with what stands where it was masked."""
    low = 0 if dtype == "uint8" else -100
    array = np.random.default_rng(0).normal(scale=20, size=(1, *SIZE)).clip(low, 100).astype(dtype)
    expected, nodata = array.copy(), None
    if masked:
        nodata = np.nan if array.dtype.kind == "f" else np.iinfo(dtype).max
        expected[:, ~hole(100)] = nodata
    data = painted(tmp_path, array, hole(100) if masked else None, order)
    assert data == whole(expected, nodata=nodata)
    assert not list(tmp_path.iterdir())


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("dtype", "known"),
    [("uint8", {"class_names": ["a", "b"]}), ("uint16", {"palette": np.eye(3, dtype="uint8")}), ("bool", {})],
)
def test_classes_are_picked(tmp_path: Path, dtype: str, known: dict[str, object]) -> None:
    """Names, colours or bool make classes, of which overviews take the nearest; masked ones as well."""
    array = np.random.default_rng(0).integers(0, 2, (1, *SIZE)).astype(dtype)
    stored = array.astype("uint8") if dtype == "bool" else array
    most = np.iinfo(stored.dtype).max
    expected = np.where(hole(10), stored, most).astype(stored.dtype)
    data = painted(tmp_path, array, hole(10), 0, **known)
    if dtype == "bool":  # what the numbers were is not told of an array of uint8
        np.testing.assert_array_equal(overview(data), overview(whole(expected, nodata=most, class_names=["a"])))
    else:
        assert data == whole(expected, nodata=most, **known)
    assert painted(tmp_path, array, None, 1, **known) == whole(array, **known)
    assert (overview(whole(array, **known)) != overview(whole(stored))).any()
