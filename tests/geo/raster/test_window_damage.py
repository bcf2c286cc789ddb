"""Damaged files that are read by windows: what is said, and what can still be read."""

from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import tifffile
from geotiffs_by_rasterio import ARRAY, TILED, geotiff

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.files import SharedFile
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.writing import write_geotiff

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def test_a_single_compressed_strip_of_gigabytes_is_refused_with_the_remedy() -> None:
    """What must be decoded as a whole and is larger than memory should hold is refused before it is read."""
    buffer = BytesIO()
    tifffile.imwrite(buffer, np.ones((9, 9), "uint8"), compression="deflate", metadata=None)
    data = bytearray(buffer.getvalue())
    for code in (256, 257, 278):  # width, height, rows per strip
        kind = next(kind for kind in (3, 4) if struct.pack("<HHI", code, kind, 1) in data)
        struct.pack_into("<HHI", data, data.index(struct.pack("<HHI", code, kind, 1)), code, 4, 1)
        struct.pack_into("<I", data, data.index(struct.pack("<HHI", code, 4, 1)) + 8, 30000)
    with pytest.raises(
        InputError, match=r"strip of 30000 x 30000 pixels, 858 MiB decoded.*gdal_translate -co TILED=YES"
    ):
        open_raster(bytes(data))


def test_a_file_that_ends_early_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    """A download that broke off is found before any window is read, with the tile that is missing."""
    path = tmp_path / "scene.tif"
    buffer = BytesIO()
    write_geotiff(buffer, np.random.default_rng(0).normal(size=(1, 1100, 700)).astype("float32"))
    path.write_bytes(buffer.getvalue()[:-1000])
    with pytest.raises(InputError, match=r"scene\.tif is truncated or damaged: tile 5 of 6 reaches to byte"):
        open_raster(path)


@pytest.mark.parametrize("interleave", ["pixel", "band"])
def test_a_damaged_tile_spoils_only_the_windows_that_touch_it(interleave: str, tmp_path: Path) -> None:
    """The window that needs a damaged tile fails and says where it lies; others are read."""
    path = tmp_path / "scene.tif"
    path.write_bytes(geotiff(**TILED, interleave=interleave))
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        tile = 6 if interleave == "pixel" else 24 + 6
        at, count = page.dataoffsets[tile], page.databytecounts[tile]
    data = bytearray(path.read_bytes())
    data[at : at + count] = bytes(count)
    path.write_bytes(data)
    band = "" if interleave == "pixel" else " of band 2"
    with open_raster(path) as opened:
        rasters = opened.windows([Window(0, 0, 16, 128), Window(20, 60, 5, 8), Window(0, 0, 9, 9)])
        np.testing.assert_array_equal(next(rasters).array, ARRAY[:, :16])
        with pytest.raises(
            InputError, match=rf"scene\.tif is a damaged TIFF: the tile of rows 16 to 31, columns 64 to 95{band}: "
        ):
            next(rasters)
        np.testing.assert_array_equal(opened.read(Window(32, 64, 5, 8)).array, ARRAY[:, 32:37, 64:72])


def test_a_file_that_shrinks_while_it_is_read_is_damaged(tmp_path: Path) -> None:
    """Where a segment is no longer there, the window that needs it says so."""
    path = tmp_path / "scene.tif"
    path.write_bytes(geotiff(blockysize=10))
    with open_raster(path) as opened:
        path.write_bytes(path.read_bytes()[:2000])
        with pytest.raises(InputError, match=r"scene\.tif is a damaged TIFF: the strip of rows"):
            opened.read(Window(80, 0, 5, 5))


def test_too_few_offsets_are_refused_at_once() -> None:
    """A file whose size asks for more tiles than it lists is said to be damaged when it is opened."""
    data = bytearray(geotiff(**TILED))
    at = data.index(struct.pack("<HHI", 257, 3, 1)) + 8
    struct.pack_into("<H", data, at, 9600)
    with pytest.raises(InputError, match="its size needs 2400 segments, but it lists 24"):
        open_raster(bytes(data))


def _with_tag(data: bytes, code: int, dtype: str, values: list[float]) -> bytes:
    """A little-endian TIFF in which a tag has another type ("f4", "i4", ...) and other values."""
    kind = {"f4": 11, "f8": 12, "i4": 9, "i8": 17, "u8": 16}[dtype]
    with tifffile.TiffFile(BytesIO(data)) as file:
        place, big = file.pages[0].tags[code].offset, file.is_bigtiff
    body = np.array(values, f"<{dtype}").tobytes()
    changed = bytearray(data)
    struct.pack_into("<HHQ" if big else "<HHI", changed, place, code, kind, len(values))
    inline, at = (8, place + 12) if big else (4, place + 8)
    if len(body) > inline:
        struct.pack_into("<Q" if big else "<I", changed, at, len(changed))
        return bytes(changed) + body
    changed[at : at + len(body)] = body
    return bytes(changed)


def _places(data: bytes) -> tuple[dict[int, list[int]], int, int]:
    """Offsets and byte counts of the segments of a TIFF by their tags, and the two tags."""
    with tifffile.TiffFile(BytesIO(data)) as file:
        page = file.pages[0]
        offsets, counts = (324, 325) if page.is_tiled else (273, 279)
        return {offsets: list(page.dataoffsets), counts: list(page.databytecounts)}, offsets, counts


_STORED = {
    "uncompressed": {},
    "deflate": {"blockysize": 48, "compress": "deflate"},
    "jpeg": {"compress": "jpeg"},
    "tiles": TILED,
}
_BYTES = ARRAY.astype("uint8")


@pytest.mark.parametrize("of", ["offsets", "counts"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("stored", _STORED)
def test_places_of_a_float_type_are_refused(stored: str, dtype: str, of: str) -> None:
    """Cut to whole numbers, counts below 1 would read as segments that are not stored; libtiff refuses the types."""
    data = geotiff(_BYTES, **_STORED[stored])
    values, offsets, counts = _places(data)
    tag = offsets if of == "offsets" else counts
    changed = _with_tag(data, tag, dtype, [value / 1e6 if of == "counts" else value for value in values[tag]])
    with pytest.raises(
        InputError, match=rf"is a damaged TIFF: its \w+ \(tag {tag}\) are of type (FLOAT|DOUBLE), which"
    ):
        open_raster(changed)


@pytest.mark.parametrize("signed", ["offsets", "counts", "both"])
@pytest.mark.parametrize("stored", _STORED)
def test_negative_places_are_refused(stored: str, signed: str) -> None:
    """A segment that lies before the file's begin is neither zeros nor an error of this library's."""
    data = geotiff(_BYTES, **_STORED[stored])
    values, offsets, counts = _places(data)
    for tag in {"offsets": [offsets], "counts": [counts], "both": [offsets, counts]}[signed]:
        data = _with_tag(data, tag, "i4", [-value for value in values[tag]])
    with pytest.raises(
        InputError, match=r"is a damaged TIFF: (strip|tile) \d+ of \d+ starts at byte -?\d+ and has -?\d+"
    ):
        open_raster(data)


def test_one_negative_place_among_good_ones_is_named() -> None:
    """The segment with the impossible place is said."""
    data = geotiff(**TILED)
    values, offsets, _ = _places(data)
    values[offsets][5] = -8
    with pytest.raises(InputError, match="is a damaged TIFF: tile 5 of 24 starts at byte -8 and has"):
        open_raster(_with_tag(data, offsets, "i4", values[offsets]))


def test_an_end_beyond_all_numbers_is_not_taken_for_one_before_the_end_of_the_file() -> None:
    """A place and a length in a BigTIFF whose sum is beyond 63 bits reach behind the end of the file."""
    data = geotiff(**TILED, BIGTIFF="YES")
    values, offsets, counts = _places(data)
    for tag in (offsets, counts):
        data = _with_tag(data, tag, "u8", [*values[tag][:3], 2**63 - 9, *values[tag][4:]])
    with pytest.raises(InputError, match=rf"is truncated or damaged: tile 3 of 24 reaches to byte {2 * (2**63 - 9)}"):
        open_raster(data)


@pytest.mark.parametrize("stated", [0, 7])
def test_one_uncompressed_strip_needs_no_length(stated: int) -> None:
    """Old writers leave the length of the only strip out, or state a wrong one; its size is known anyway."""
    data = bytearray(geotiff(blockysize=96, interleave="pixel"))
    at = data.index(struct.pack("<HHII", 279, 4, 1, ARRAY.nbytes)) + 8
    struct.pack_into("<I", data, at, stated)
    with open_raster(bytes(data)) as opened:
        np.testing.assert_array_equal(opened.read(Window(90, 3, 6, 50)).array, ARRAY[:, 90:, 3:53])


def test_a_strip_that_is_cut_short_is_damaged() -> None:
    """The last strip of an uncompressed file is not filled up with what follows it in the file."""
    data = bytearray(geotiff(blockysize=48, interleave="pixel"))
    half = ARRAY.nbytes // 2
    with tifffile.TiffFile(BytesIO(data)) as file:
        tag = file.pages[0].tags[279]
    width = 2 if tag.dtype == 3 else 4
    data[tag.valueoffset + width : tag.valueoffset + 2 * width] = (half - 100).to_bytes(width, "little")
    with open_raster(bytes(data)) as opened:
        np.testing.assert_array_equal(opened.read(Window(0, 0, 48, 128)).array, ARRAY[:, :48])
        with pytest.raises(InputError, match="the strip of rows 48 to 95, columns 0 to 127: TiffFileError"):
            opened.read(Window(90, 0, 6, 128))


def test_a_tile_of_another_size_than_the_file_says_is_damaged() -> None:
    """Where a codec gives fewer rows than a strip has, the strip is damaged rather than filled with anything."""
    data = bytearray(geotiff(ARRAY[:, :20], compress="lerc", blockysize=7))
    at = data.index(struct.pack("<HHIH", 278, 3, 1, 7))
    struct.pack_into("<HHIH", data, at, 278, 3, 1, 8)
    with open_raster(bytes(data)) as opened, pytest.raises(InputError, match="the strip of rows 0 to 7, columns 0 to"):
        opened.read()


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file that opens and cannot be read")
def test_a_file_that_the_system_cannot_read_is_named() -> None:
    """What the system says about a file of ours becomes an error with its name."""
    with pytest.raises(InputError, match=r"cannot read /proc/self/mem: \[Errno \d+\]"):
        open_raster("/proc/self/mem")


def test_closing_while_another_thread_reads_says_so(tmp_path: Path) -> None:
    """A reader that finds its file closed under it gets the error of a closed raster."""
    path = tmp_path / "scene.tif"
    path.write_bytes(geotiff())
    shared = SharedFile(path.open("rb"), str(path), owned=True)
    assert shared.read_at(0, 2) == b"II"
    shared.close()
    with pytest.raises(InputError, match=r"scene\.tif is closed; open it again"):
        shared.read_at(0, 2)
