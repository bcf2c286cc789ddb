"""Which parts of a file a window touches: what is read, decoded and kept."""

from __future__ import annotations

import threading
import tracemalloc
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from geotiffs_by_rasterio import ARRAY, TILED, geotiff
from rasterio.io import MemoryFile
from rasterio.windows import Window as RasterioWindow

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster import sequence
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Window

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


class Counted(BytesIO):
    """A file that knows what was read of it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.places: list[tuple[int, int]] = []

    def read(self, count: int | None = -1) -> bytes:
        at = self.tell()
        data = super().read(count)
        self.places.append((at, len(data)))
        return data

    @property
    def count(self) -> int:
        return sum(length for _, length in self.places)


def tiles(counts: np.ndarray, grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The segments that were decoded, each once."""
    assert counts.max() <= 1
    return [tuple(place) for place in np.argwhere(counts.reshape(grid)).tolist()]


def test_only_the_tiles_that_a_window_touches_are_decoded() -> None:
    """Of an interleaved file in tiles of 16 x 32, those under the window are decoded, no other."""
    with open_raster(geotiff(**TILED, interleave="pixel")) as opened:
        assert opened.block == (16, 32)
        assert opened.block_bytes == 16 * 32 * 3 * 2
        np.testing.assert_array_equal(opened.read(Window(15, 32, 2, 33)).array, ARRAY[:, 15:17, 32:65])
        assert tiles(opened.decoded, (1, 6, 4)) == [(0, 0, 1), (0, 0, 2), (0, 1, 1), (0, 1, 2)]


def test_only_the_planes_that_are_asked_for_are_decoded() -> None:
    """Of a file that stores its bands one by one, the bands that nobody asked for are not decoded."""
    with open_raster(geotiff(**TILED, interleave="band")) as opened:
        assert opened.block_bytes == 16 * 32 * 3 * 2
        part = opened.read(Window(40, 100, 3, 5), [3, 1, 3])
        np.testing.assert_array_equal(part.array, ARRAY[[2, 0, 2], 40:43, 100:105])
        assert tiles(opened.decoded, (3, 6, 4)) == [(0, 2, 3), (2, 2, 3)]


def test_only_the_strips_that_a_window_touches_are_decoded() -> None:
    """A window of a striped file decodes the strips of its rows."""
    with open_raster(geotiff(compress="lzw", blockysize=10, interleave="pixel")) as opened:
        np.testing.assert_array_equal(opened.read(Window(19, 7, 2, 1)).array, ARRAY[:, 19:21, 7:8])
        assert tiles(opened.decoded, (1, 10, 1)) == [(0, 1, 0), (0, 2, 0)]


@pytest.mark.parametrize("interleave", ["pixel", "band"])
@pytest.mark.parametrize("layout", [TILED, {"compress": "deflate", "blockysize": 1}, {"compress": "lzw"}], ids=str)
def test_a_sequence_of_overlapping_windows_decodes_each_segment_once(
    layout: dict[str, object], interleave: str
) -> None:
    """Windows that overlap share what they have decoded, in whatever order they come."""
    windows = [Window(row, col, 40, 50) for row in (0, 28, 56) for col in (0, 39, 78)]
    with open_raster(geotiff(**layout, interleave=interleave)) as opened:
        for order in (windows, windows[::-1]):
            for window, raster in zip(order, opened.windows(order), strict=True):
                np.testing.assert_array_equal(raster.array, ARRAY[:, window.rows, window.cols])
        assert set(opened.decoded.tolist()) == {2}


@pytest.mark.heavy
def test_a_segment_is_dropped_after_the_last_window_that_touches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a striped scene of four times the rows, window by window, takes no more memory."""
    monkeypatch.setattr(sequence, "READ_AHEAD_BYTES", 0)  # how far threads decode ahead depends on their pace

    def peak(height: int) -> int:
        data = geotiff(np.ones((2, height, 2000), "uint16"), compress="deflate", interleave="pixel", blockysize=4)
        windows = [Window(row, col, 100, 1000) for row in range(0, height, 100) for col in (0, 1000)]
        with open_raster(data) as opened:
            tracemalloc.start()
            for _ in opened.windows(windows):
                pass
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return most

    once = peak(1600)
    assert once > 100 * 1000 * 2 * 2
    assert peak(6400) < once + 4 * 2**19  # two threads, each with a decoding task of half a MiB more or less


@pytest.mark.parametrize("rows", [1, 64])
def test_of_a_strip_that_is_kept_only_the_columns_needed_stay(rows: int) -> None:
    """Windows over a tenth of the columns keep about that much of each strip, and each thread the strips of a turn."""
    data = geotiff(np.ones((1, 64, 40000), "uint16"), compress="deflate", blockysize=rows)

    def kept(columns: int) -> int:
        with open_raster(data) as opened:
            windows = [Window(0, 0, 64, columns // 2), Window(0, columns // 2, 64, columns // 2)]
            rasters = opened.windows(windows)
            tracemalloc.start()
            first = next(rasters)
            now, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            rasters.close()
        return now - first.array.nbytes

    assert kept(40000) > 64 * 20000 * 2
    assert kept(4000) < 2 * 64 * 4000 * 2 + sequence.THREADS * (rows * 40000 * 2 + sequence._BATCH)


def test_strips_that_follow_each_other_are_read_at_once() -> None:
    """A file of a strip a row takes far fewer reads than it has strips."""
    file = Counted(geotiff(ARRAY, compress="deflate", blockysize=1, interleave="pixel"))
    with open_raster(file) as opened:
        before = len(file.places)
        np.testing.assert_array_equal(opened.read().array, ARRAY)
        assert opened.decoded.sum() == 96
        assert len(file.places) - before < 96 / 4


@pytest.mark.parametrize("interleave", ["pixel", "band"])
@pytest.mark.parametrize("rows", [1, 2000])
def test_an_uncompressed_strip_is_read_in_part(rows: int, interleave: str) -> None:
    """A window of an uncompressed file reads little more than its rows, in whatever strips it is stored."""
    array = np.random.default_rng(1).integers(0, 99, (2, 2000, 1500)).astype("int16")
    file = Counted(geotiff(array, blockysize=rows, interleave=interleave))
    with open_raster(file) as opened:
        before = file.count
        np.testing.assert_array_equal(opened.read(Window(1990, 3, 5, 20)).array, array[:, 1990:1995, 3:23])
        assert file.count - before < 2**20
        np.testing.assert_array_equal(opened.read().array, array)
    assert before < 2**17


@pytest.mark.parametrize("options", [{"NBITS": 1}, {"NBITS": 12}, {"predictor": 2}, {"ENDIANNESS": "BIG"}], ids=str)
def test_pieces_of_uncompressed_strips_decode_as_the_whole(options: dict[str, object]) -> None:
    """Bits that are packed, and either byte order, come right from the middle of a large strip."""
    array = (ARRAY[:1] % 2).astype("uint8" if options.get("NBITS") == 1 else "uint16").repeat(9, 1).repeat(90, 2)
    data = geotiff(array, blockysize=array.shape[1], **options)
    with open_raster(data) as opened:
        assert opened.block[0] < array.shape[1]
        window = Window(333, 1001, 77, 500)
        np.testing.assert_array_equal(opened.read(window).array, array[:, window.rows, window.cols], strict=True)


def test_a_large_uncompressed_tile_is_read_in_part() -> None:
    """Tiles of many megabytes are cut into pieces that end where the tiles do; those that are not stored are filled."""
    array = np.full((2, 1500, 1100), 7, "uint16")
    array[:, :1024, :1024] = np.random.default_rng(2).integers(1, 99, (2, 1024, 1024))
    for interleave in ("pixel", "band"):
        file = Counted(
            geotiff(
                array, tiled=True, blockxsize=1024, blockysize=1024, interleave=interleave, SPARSE_OK=True, nodata=7
            )
        )
        with open_raster(file) as opened:
            before = file.count
            for window in (Window(900, 1000, 200, 100), Window(0, 0, 8, 1024), Window(1400, 0, 100, 1100)):
                np.testing.assert_array_equal(opened.read(window).array, array[:, window.rows, window.cols])
            assert (opened.decoded > 0).sum() == opened.decoded.sum()
            assert file.count - before < 2**21


@pytest.mark.parametrize("tiled", [True, False])
def test_a_mask_is_read_by_windows_too(tiled: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """The internal mask of a window is that of rasterio, and only the segments under it are decoded."""
    mask = np.random.default_rng(3).random((96, 128)) < 0.5
    options = TILED if tiled else {"compress": "deflate", "blockysize": 8}
    data = geotiff(mask=mask, **options)
    window = Window(17, 33, 9, 20)
    with open_raster(data) as opened:
        raster = opened.read(window)
        np.testing.assert_array_equal(raster.mask, mask[window.rows, window.cols])
        assert 0 < (opened.decoded > 0).sum() < len(opened.decoded) / 2


def test_overviews_and_tiles_that_are_not_stored_cost_nothing() -> None:
    """A sparse tile is filled with nodata, as by rasterio, without being decoded."""
    with MemoryFile() as memory:
        with memory.open(
            driver="GTiff", dtype="int16", count=2, height=64, width=64, nodata=-7, tiled=True, blockxsize=16,
            blockysize=16, SPARSE_OK=True, compress="deflate",
        ) as file:  # fmt: skip
            file.write(np.ones((2, 16, 16), "int16"), window=RasterioWindow(16, 16, 16, 16))
            file.build_overviews([2])
        data = bytes(memory.getbuffer())
    with open_raster(data) as opened, MemoryFile(data) as memory, memory.open() as file:
        for window in (Window(0, 0, 64, 64), Window(20, 20, 20, 20), Window(40, 40, 9, 9)):
            theirs = RasterioWindow(window.col, window.row, window.width, window.height)
            np.testing.assert_array_equal(opened.read(window).array, file.read(window=theirs), strict=True)
        assert opened.decoded.sum() == 2


@pytest.mark.parametrize(
    "options",
    [{"compress": "jpeg", "photometric": "ycbcr"}, {"compress": "webp"}, {"compress": "jpeg", "interleave": "band"}],
    ids=str,
)
def test_pictures_in_tiles_are_decoded_by_windows(options: dict[str, object]) -> None:
    """JPEG, whose tables all tiles share, and WebP are cut from the whole as other compressions are."""
    smooth = np.stack([*np.meshgrid(np.arange(96), np.arange(64)), np.full((64, 96), 90)]).astype("uint8")
    data = geotiff(smooth, tiled=True, blockxsize=32, blockysize=32, **options)
    with open_raster(data) as opened, MemoryFile(data) as memory, memory.open() as file:
        whole = opened.read().array
        assert np.abs(whole.astype(int) - file.read()).max() <= 2  # two decoders round differently
        np.testing.assert_array_equal(opened.read(Window(30, 20, 30, 50)).array, whole[:, 30:60, 20:70], strict=True)


def test_no_thread_outlives_the_reading() -> None:
    """After a read, a sequence, one that was left early and one that failed, the threads are those from before."""
    before = set(threading.enumerate())
    damaged = bytearray(geotiff(**TILED))
    damaged[-200:] = bytes(200)
    with open_raster(geotiff(**TILED)) as opened, open_raster(bytes(damaged)) as broken:
        opened.read()
        assert len(list(opened.windows([Window(0, 0, 96, 128)] * 2))) == 2
        left = opened.windows([Window(0, 0, 96, 128)] * 2)
        next(left)
        assert set(threading.enumerate()) - before
        left.close()
        with pytest.raises(InputError):
            broken.read()
        assert not set(threading.enumerate()) - before


def test_several_threads_may_read_one_raster(tmp_path: Path) -> None:
    """Windows that threads read at the same time are each right."""
    path = tmp_path / "scene.tif"
    path.write_bytes(geotiff(**TILED))
    wrong = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            row, col = int(rng.integers(0, 60)), int(rng.integers(0, 90))
            window = Window(row, col, 30, 30)
            if not np.array_equal(opened.read(window).array, ARRAY[:, window.rows, window.cols]):
                wrong.append(window)

    with open_raster(path) as opened:
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
