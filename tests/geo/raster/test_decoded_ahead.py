"""Segments are decoded ahead of the windows that need them, by several threads."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tifffile
from geotiffs_by_rasterio import ARRAY, TILED, geotiff

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster import sequence
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.scratch import Scratch
from vllm_mmout.geo.raster.segments import Segments

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def test_tiles_of_the_next_windows_are_decoded_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once, though each window has one; no more of them than may wait."""
    monkeypatch.setattr(sequence, "THREADS", 2)
    monkeypatch.setattr(sequence, "_TASKS_AHEAD", 1)
    monkeypatch.setattr(sequence, "_BATCH", 1)
    meeting, decode = threading.Barrier(2, timeout=30), Segments.decode
    met = []

    def together(segments: Segments, place: tuple[int, int, int], data: bytes, scratch: Scratch) -> np.ndarray:
        if len(met) < 2:
            met.append(place)
            meeting.wait()
        return decode(segments, place, data, scratch)

    monkeypatch.setattr(Segments, "decode", together)
    path = tmp_path / "scene.tif"
    path.write_bytes(geotiff(**TILED, interleave="pixel"))
    windows = [Window(row, col, 16, 32) for row in range(0, 96, 16) for col in range(0, 128, 32)]
    with open_raster(path) as opened:
        for number, (window, part) in enumerate(zip(windows, opened.windows(windows), strict=True), start=1):
            np.testing.assert_array_equal(part.array, ARRAY[:, window.rows, window.cols])
            assert opened.decoded.sum() <= number + 2
    assert sorted(met) == [(0, 0, 0), (0, 0, 1)]


def test_sequences_that_are_read_at_once_share_what_may_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four tiles that may wait in all, each of two sequences has two."""
    path = tmp_path / "scene.tif"
    path.write_bytes(geotiff(**TILED, interleave="pixel"))
    monkeypatch.setattr(sequence, "THREADS", 2)
    monkeypatch.setattr(sequence, "_TASKS_AHEAD", 8)
    monkeypatch.setattr(sequence, "_BATCH", 1)
    monkeypatch.setattr(sequence, "READ_AHEAD_BYTES", 4 * ARRAY[:, :16, :32].nbytes)
    windows = [Window(row, col, 16, 32) for row in range(0, 96, 16) for col in range(0, 128, 32)]
    with open_raster(path) as other, open_raster(path) as opened, closing(other.windows(windows)) as beside:
        next(beside)
        for number, _ in enumerate(opened.windows(windows), start=1):
            assert opened.decoded.sum() <= number + 2
    assert not sequence._READERS


def test_a_damaged_tile_fails_its_own_window_alone(tmp_path: Path) -> None:
    """Those before it are read, although it was decoded ahead of them."""
    path = tmp_path / "scene.tif"
    path.write_bytes(geotiff(**TILED, interleave="pixel"))
    with tifffile.TiffFile(path) as tiff:
        at, count = tiff.pages[0].dataoffsets[2], tiff.pages[0].databytecounts[2]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * count)
    windows = [Window(0, col, 16, 32) for col in range(0, 128, 32)]
    with open_raster(path) as opened:
        parts = opened.windows(windows)
        for window in windows[:2]:
            np.testing.assert_array_equal(next(parts).array, ARRAY[:, window.rows, window.cols])
        with pytest.raises(InputError, match="is a damaged TIFF: the tile of"):
            next(parts)
