"""StoredRaster: a raster on disk against the same raster in memory, and the life of its file."""

from __future__ import annotations

import copy
import errno
import gc
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import rasterio
from on_disk import CLASSES, PALETTE, stored
from PIL import Image

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.outputs import RasterOutput, Source
from vllm_mmout.outputs.stored import StoredRaster

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

IDS = np.random.default_rng(0).integers(0, 4, (1, 700, 600), "uint8") * np.uint8(85)
IDS[IDS < 255] //= 85


@pytest.fixture
def raster(tmp_path: Path) -> StoredRaster:
    """Classes on disk; the folder has its file alone."""
    return stored(IDS, tmp_path, **CLASSES)


@pytest.mark.parametrize("name", ["array", "valid", "image"])
def test_what_it_shows_is_what_a_raster_in_memory_shows(raster: StoredRaster, name: str) -> None:
    """Pixels, mask and picture are those of the RasterOutput of the same array."""
    np.testing.assert_array_equal(
        np.asarray(getattr(raster, name)), np.asarray(getattr(RasterOutput(IDS, **CLASSES), name)), strict=True
    )


def test_it_says_what_a_raster_in_memory_says(raster: StoredRaster) -> None:
    """Size, dtype, place, names, colours and items are there without reading a pixel."""
    memory = RasterOutput(IDS, **CLASSES)
    assert isinstance(raster, RasterOutput)
    names = "count height width dtype crs transform nodata georeference band_names units class_names metadata path"
    for name in names.split():
        assert getattr(raster, name) == getattr(memory, name), name
    np.testing.assert_array_equal(raster.palette, PALETTE)
    assert repr(raster) == repr(memory).replace("RasterOutput", "StoredRaster")
    assert raster._repr_png_() == memory._repr_png_()


@pytest.mark.parametrize("name", ["tif", "png", "jpeg", "webp", "npz"])
def test_its_bytes_are_those_of_a_raster_in_memory(raster: StoredRaster, name: str) -> None:
    """Every format has the same bytes, the GeoTIFF among them; an archive the same arrays."""
    data, expected = raster.to_bytes(name), RasterOutput(IDS, **CLASSES).to_bytes(name)
    if name != "npz":
        assert data == expected
        return
    with np.load(BytesIO(data)) as arrays, np.load(BytesIO(expected)) as others:
        assert {name: array.tolist() for name, array in arrays.items()} == {
            name: array.tolist() for name, array in others.items()
        }


def test_read_gives_a_window(raster: StoredRaster) -> None:
    """A window across blocks is rows and columns of the array; none is everything."""
    np.testing.assert_array_equal(raster.read(Window(500, 10, 100, 590)), IDS[:, 500:600, 10:600], strict=True)
    np.testing.assert_array_equal(raster.read(), IDS, strict=True)
    with pytest.raises(InputError, match="window of 1 rows from 0 and 2 columns from 599 is not within"):
        raster.read(Window(0, 599, 1, 2))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_where_all_is_valid_there_is_no_mask(tmp_path: Path) -> None:
    """A raster without a hole has None, and a picture without alpha."""
    raster = stored(np.ones((1, 600, 600), "float32"), tmp_path, nodata=math.nan)
    assert raster.valid is None
    assert raster.image.mode == "L"


def test_pixels_cannot_be_set(raster: StoredRaster) -> None:
    """An assignment that would change nothing on disk is an error."""
    with pytest.raises(AttributeError):
        raster.array = IDS


def test_it_is_placed_already(raster: StoredRaster) -> None:
    """Laying it on its input gives itself."""
    assert raster.placed(Source(valid=np.zeros((700, 600), bool))) is raster


def test_the_first_geotiff_takes_the_file_over_and_the_second_is_a_copy(raster: StoredRaster, tmp_path: Path) -> None:
    """The temporary file gets the name, with the rights of a new file; rasterio reads all that is known."""
    (temporary,) = tmp_path.iterdir()
    assert temporary.stat().st_mode & 0o077 == 0
    inode, data = temporary.stat().st_ino, temporary.read_bytes()
    target = raster.save(tmp_path / "mask.tif")
    assert names(tmp_path) == ["mask.qml", "mask.tif", "mask.tif.aux.xml"]
    assert (raster.path, target.stat().st_ino, target.stat().st_nlink) == (str(target), inode, 1)
    again = raster.save(tmp_path / "again.TIFF")
    assert again.stat().st_ino != inode
    assert again.read_bytes() == target.read_bytes() == data
    (fresh := tmp_path / "fresh").touch()
    assert target.stat().st_mode == again.stat().st_mode == fresh.stat().st_mode
    np.testing.assert_array_equal(raster.array, IDS)
    with rasterio.open(target) as file:
        np.testing.assert_array_equal(file.read(), IDS)
        assert (file.nodata, file.descriptions, file.crs.to_epsg()) == (255, ("classes",), 32614)
        assert file.tags(1)["CLASS_1"] == "water"
        assert file.tags()["SENSOR"] == "MSI"
        assert file.colormap(1)[2][:3] == (200, 100, 0)


def test_a_saved_file_outlives_the_raster(raster: StoredRaster, tmp_path: Path) -> None:
    """What was saved is the user's: neither close nor the garbage collector removes it."""
    target = raster.save(tmp_path / "mask.tif")
    raster.close()
    with pytest.raises(InputError, match=r"the raster was closed; read .*mask\.tif itself"):
        raster.read()
    del raster
    gc.collect()
    assert names(tmp_path) == ["mask.qml", "mask.tif", "mask.tif.aux.xml"]
    assert target.stat().st_size


def test_saving_in_the_place_where_it_lies_changes_nothing(raster: StoredRaster, tmp_path: Path) -> None:
    """A second save under the same name leaves a whole file there."""
    target = raster.save(tmp_path / "mask.tif")
    data = target.read_bytes()
    assert raster.save(target).read_bytes() == data


def test_a_relative_path_is_found_from_another_folder(
    raster: StoredRaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the process goes later does not matter to a saved raster."""
    monkeypatch.chdir(tmp_path)
    raster.save("mask.tif")
    other = StoredRaster("mask.tif")
    monkeypatch.chdir("/")
    assert raster.path == other.path == "mask.tif"
    np.testing.assert_array_equal(raster.read(), IDS)
    np.testing.assert_array_equal(other.read(), IDS)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
def test_another_file_system_gets_a_copy(
    raster: StoredRaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Where a file cannot be linked it is copied, and the temporary one removed."""

    def link(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    raster.save(tmp_path / "mask.tif")
    assert names(tmp_path) == ["mask.qml", "mask.tif", "mask.tif.aux.xml"]
    np.testing.assert_array_equal(raster.array, IDS)


def failing_replace(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_save_that_fails_loses_nothing(raster: StoredRaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any error the raster reads as before, and a later save works; no other file is there."""
    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing_replace)
        with pytest.raises(SaveError, match=r"cannot write .*mask\.tif: No space left on device"):
            raster.save(tmp_path / "mask.tif")
    for path, words in (("no/mask.tif", "there is no folder"), ("mask.gpkg", r"known: \.tif"), ("mask", "no suffix")):
        with pytest.raises(SaveError, match=words):
            raster.save(tmp_path / path)
    with pytest.raises(SaveError, match="tiff has no quality"):
        raster.save(tmp_path / "mask.tif", quality=3)
    assert sorted(tmp_path.iterdir()) == before
    np.testing.assert_array_equal(raster.array, IDS)
    assert raster.path is None
    raster.save(tmp_path / "mask.tif")
    assert names(tmp_path) == ["mask.qml", "mask.tif", "mask.tif.aux.xml"]


def test_a_picture_leaves_the_raster_where_it_is(raster: StoredRaster, tmp_path: Path) -> None:
    """Saving a picture does not take the temporary file, and is not where the raster is read from."""
    with Image.open(raster.save(tmp_path / "mask.png")) as image:
        np.testing.assert_array_equal(np.asarray(image), np.asarray(raster.image))
    assert raster.path is None
    assert len(list(tmp_path.iterdir())) == 2


def test_close_removes_the_file_and_says_so(raster: StoredRaster, tmp_path: Path) -> None:
    """Afterwards reading and saving are errors, closing again is none, and the repr is as it was."""
    text = repr(raster)
    raster.close()
    raster.close()
    assert list(tmp_path.iterdir()) == []
    uses: list[Callable[[], object]] = [
        raster.read,
        lambda: raster.read(Window(0, 0, 1, 1)),
        lambda: raster.array,
        lambda: raster.valid,
        lambda: raster.image,
        lambda: raster.to_bytes("tif"),
        lambda: raster.save(tmp_path / "mask.tif"),
        lambda: raster.save(tmp_path / "mask.png"),
    ]
    for use in uses:
        with pytest.raises(InputError, match="the raster was closed; read it, or save it as GeoTIFF, before"):
            use()
    assert list(tmp_path.iterdir()) == []
    assert repr(raster) == text


def test_the_garbage_collector_removes_the_file(tmp_path: Path) -> None:
    """A result that nobody keeps leaves nothing on the disk."""
    raster = stored(IDS, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    del raster
    gc.collect()
    assert list(tmp_path.iterdir()) == []


EXIT = """
import os, sys
from pathlib import Path
import numpy as np
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.geo.raster.writing import GeoTiffBlocks
unfinished = GeoTiffBlocks(Path(sys.argv[1]), bands=1, height=600, width=600, dtype=sys.argv[2])
unfinished.write(0, 0, np.zeros((1, 512, 512), sys.argv[2]))
blocks = GeoTiffBlocks(Path(sys.argv[1]), bands=1, height=9, width=9, dtype=sys.argv[2])
blocks.write(0, 0, np.zeros((1, 9, 9), sys.argv[2]))
raster = StoredRaster.from_blocks(blocks)
if os.fork() == 0:
    sys.exit()
os.wait()
print(raster.read().shape)
raise KeyboardInterrupt
"""


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_the_end_of_the_process_removes_the_file_and_that_of_a_fork_does_not(tmp_path: Path, dtype: str) -> None:
    """A forked child that ends leaves the parent's file; the parent takes it along, interrupted or not."""
    command = [sys.executable, "-W", "ignore", "-c", EXIT, str(tmp_path), dtype]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == "(1, 9, 9)\n"
    assert run.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda raster: pickle.loads(pickle.dumps(raster))])  # noqa: S301 - our own bytes
def test_a_copy_reads_the_same_file_and_does_not_own_it(
    raster: StoredRaster, tmp_path: Path, again: Callable[[StoredRaster], StoredRaster]
) -> None:
    """The end of a copy, pickled or not, leaves the file; the end of the original takes it."""
    twin = again(raster)
    np.testing.assert_array_equal(twin.array, IDS)
    assert repr(twin) == repr(raster)
    twin.close()
    del twin
    gc.collect()
    np.testing.assert_array_equal(raster.array, IDS)
    twin = again(raster)
    raster.close()
    with pytest.raises(InputError, match=r"is gone .*; save it before it is copied or sent"):
        twin.read()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_somebody_else_is_left_alone(raster: StoredRaster, tmp_path: Path) -> None:
    """A raster made of a path that it does not own never removes it, and its first save is a copy."""
    path = raster.save(tmp_path / "mask.tif")
    other = StoredRaster(path, nodata=255)
    assert other.path == str(path)
    other.save(tmp_path / "copy.tif")
    other.close()
    assert path.exists()
    assert other.path == str(path)


def test_threads_may_read_while_it_is_saved(raster: StoredRaster, tmp_path: Path) -> None:
    """Windows read by four threads are right while the file moves under them."""
    windows = [Window(row, col, 50, 60) for row in range(0, 650, 90) for col in range(0, 540, 90)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(raster.read, windows)
        raster.save(tmp_path / "mask.tif")
        for window, pixels in zip(windows, found, strict=True):
            np.testing.assert_array_equal(pixels, IDS[:, window.rows, window.cols])


@pytest.mark.parametrize(
    ("known", "error", "words"),
    [
        ({"band_names": ["a", "b"]}, SaveError, "one entry per band, 1, got 2"),
        ({"palette": np.zeros((3, 4), "uint8")}, SaveError, r"uint8 \[n, 3\]"),
        ({"nodata": 256}, SaveError, "from 0 to 255"),
        ({"palette": np.zeros((0, 3), "uint8")}, InputError, r"palette must be uint8 \[n, 3\]"),
    ],
)
def test_what_does_not_fit_leaves_nothing(
    tmp_path: Path, known: dict[str, object], error: type[Exception], words: str
) -> None:
    """Whatever is refused, in the file or in the object, no file stays."""
    with pytest.raises(error, match=words):
        stored(IDS, tmp_path, **known)
    assert list(tmp_path.iterdir()) == []
