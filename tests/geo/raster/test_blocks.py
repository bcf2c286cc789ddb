"""Writing a GeoTIFF block by block: order, refusals, memory, full disks, and what is left behind."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import rasterio
from files_open import open_below

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.writing import GeoTiffBlocks

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

IDS = np.arange(700 * 600, dtype="uint16").reshape(1, 700, 600) % 7
PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def block(row: int, col: int) -> np.ndarray:
    return IDS[:, row * 512 : (row + 1) * 512, col * 512 : (col + 1) * 512]


def blocks_of_ids(folder: Path, places: list[tuple[int, int]] = PLACES, *, classes: bool = False) -> GeoTiffBlocks:
    blocks = GeoTiffBlocks(folder, bands=1, height=700, width=600, dtype="uint16", classes=classes)
    for place in places:
        blocks.write(*place, block(*place))
    return blocks


@pytest.mark.parametrize("names", [None, ["land"]])
def test_the_file_appears_when_it_is_finished(tmp_path: Path, names: list[str] | None) -> None:
    """Until then the folder has a hidden file of pixels, or none for classes; then one that its owner alone reads."""
    blocks = blocks_of_ids(tmp_path, PLACES[::-1], classes=names is not None)
    hidden = [path.name[0] + "".join(path.suffixes[-2:]) for path in tmp_path.iterdir()]
    assert hidden == (["..pixels.part"] if names is None else [])
    path = blocks.finish(nodata=65535, class_names=names)
    assert list(tmp_path.iterdir()) == [path]
    assert (path.name[0], path.suffix, path.stat().st_mode & 0o777) == (".", ".part", 0o600)
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(file.read(), IDS, strict=True)
        assert file.block_shapes == [(512, 512)]
        assert file.nodata == 65535


def test_without_a_folder_it_is_the_one_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is the system's folder, as tempfile finds it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert blocks_of_ids(None).finish().parent == tmp_path


def test_the_blocks_of_an_array_that_is_no_copy_stay_as_they_are(tmp_path: Path) -> None:
    """A block may be a view, and what it shows is not changed."""
    before = IDS.copy()
    blocks_of_ids(tmp_path).finish()
    np.testing.assert_array_equal(IDS, before)


def test_a_block_that_is_missing_is_named(tmp_path: Path) -> None:
    """An incomplete raster is an error that names the first block, and nothing is left."""
    with pytest.raises(SaveError, match=r"block \(1, 0\) was never written, of 2 x 2 blocks"):
        blocks_of_ids(tmp_path, [(0, 1), (0, 0), (1, 1)]).finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [None, ["land"]])
def test_classes_that_the_metadata_does_not_confirm_are_refused(tmp_path: Path, names: list[str] | None) -> None:
    """The overviews of blocks begun as classes take the nearest pixel, and those of values the mean."""
    blocks = blocks_of_ids(tmp_path, classes=names is None)
    with pytest.raises(SaveError, match=f"begun with classes={names is None}, and its metadata says the opposite"):
        blocks.finish(class_names=names)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "pixels", "words"),
    [
        ((0, 0), block(0, 0), r"block \(0, 0\) is written twice"),
        ((2, 0), block(0, 0), r"no block \(2, 0\), of 2 x 2"),
        ((0, -1), block(0, 1), r"no block \(0, -1\)"),
        ((1, 1), block(0, 0), r"block \(1, 1\) must be uint16 \[1, 188, 88\], got uint16 \[1, 512, 512\]"),
        ((1, 1), block(1, 1)[0], r"got uint16 \[188, 88\]"),
        ((1, 1), block(1, 1).astype("int16"), "got int16"),
    ],
)
def test_a_block_that_is_not_the_rasters_is_refused(
    tmp_path: Path, place: tuple[int, int], pixels: np.ndarray, words: str
) -> None:
    """The error says which block; the others are written all the same."""
    blocks = blocks_of_ids(tmp_path, [(0, 0), (0, 1), (1, 0)])
    with pytest.raises(SaveError, match=words):
        blocks.write(*place, pixels)
    blocks.write(1, 1, block(1, 1))
    with rasterio.open(blocks.finish()) as file:
        np.testing.assert_array_equal(file.read(), IDS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "complex64"}, "integers or floating point, got complex64"),
        ({"height": 0}, "not empty, got 1 x 0 x 600"),
        ({"folder": Path("/nowhere")}, "cannot write to /nowhere: No such file"),
    ],
)
def test_a_raster_that_cannot_be_is_refused_at_the_start(options: dict[str, object], words: str) -> None:
    """What a GeoTIFF cannot hold, and a folder that is not there, are errors before any block."""
    settings = {"folder": None, "bands": 1, "height": 700, "width": 600, "dtype": "uint8", **options}
    with pytest.raises(SaveError, match=words):
        GeoTiffBlocks(settings.pop("folder"), **settings)


@pytest.mark.parametrize("names", [None, ["land"]])
@pytest.mark.parametrize(
    ("known", "error", "words"),
    [
        ({"nodata": -1}, SaveError, "an integer from 0 to 65535"),
        ({"units": ["m", "m"]}, SaveError, "units must have one entry per band, 1, got 2"),
        ({"georeference": Georeference(crs="EPSG:5773")}, InputError, "EPSG:5773"),
    ],
)
def test_what_does_not_fit_a_geotiff_leaves_nothing(
    tmp_path: Path, known: dict[str, object], error: type[Exception], words: str, names: list[str] | None
) -> None:
    """The errors are those of write_geotiff, and the folder is empty after them."""
    with pytest.raises(error, match=words):
        blocks_of_ids(tmp_path, classes=names is not None).finish(class_names=names, **known)
    assert open_below(tmp_path) == list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("classes", [False, True])
def test_discarding_removes_everything_any_number_of_times(tmp_path: Path, classes: bool) -> None:  # noqa: FBT001
    """Blocks and the finished file are gone; a block after that is an error."""
    unfinished, finished = blocks_of_ids(tmp_path, PLACES[:1], classes=classes), blocks_of_ids(tmp_path)
    finished.finish()
    for blocks in (unfinished, finished, unfinished, finished):
        blocks.discard()
    assert open_below(tmp_path) == list(tmp_path.iterdir()) == []
    for call in (lambda: unfinished.write(0, 1, block(0, 1)), unfinished.finish):
        with pytest.raises(SaveError, match="finished or discarded"):
            call()


def test_finishing_again_is_an_error_that_leaves_the_file(tmp_path: Path) -> None:
    """The finished file is the caller's: a second finish refuses, and does not touch it."""
    blocks = blocks_of_ids(tmp_path)
    path = blocks.finish()
    data = path.read_bytes()
    with pytest.raises(SaveError, match="finished or discarded before"):
        blocks.finish()
    assert path.read_bytes() == data


@pytest.mark.parametrize("classes", [False, True])
def test_what_is_forgotten_frees_its_space(tmp_path: Path, classes: bool) -> None:  # noqa: FBT001 - a parameter
    """Blocks that nobody finishes leave no name and no open file, and a finished file stays without them."""
    blocks = blocks_of_ids(tmp_path, PLACES[:1], classes=classes)
    assert len(open_below(tmp_path)) == 1
    del blocks
    gc.collect()
    assert open_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    blocks = blocks_of_ids(tmp_path, classes=classes)
    path = blocks.finish(class_names=["land"] if classes else None)
    del blocks
    gc.collect()
    path.unlink()
    assert open_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


END = """
import resource, sys
from pathlib import Path
import numpy as np
from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.writing import GeoTiffBlocks
blocks = GeoTiffBlocks(Path(sys.argv[1]), bands=1, height=500, width=500, dtype="uint8")
blocks.write(0, 0, np.random.default_rng(0).integers(0, 256, (1, 500, 500), "uint8"))
blocks._pixels._file.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (240_000, 240_000))
try:
    blocks.finish()
except SaveError as error:
    print(error)
"""


@pytest.mark.heavy
def test_an_end_that_finds_no_room_is_missed(tmp_path: Path) -> None:
    """Of the last bytes of a file GDAL does not say that they could not be written."""
    run = subprocess.run([sys.executable, "-c", END, tmp_path], capture_output=True, text=True, check=True, timeout=120)
    assert os.strerror(errno.EFBIG) in run.stdout
    assert list(tmp_path.iterdir()) == []


FILL = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.writing import GeoTiffBlocks
classes = sys.argv[3] == "classes"
blocks = GeoTiffBlocks(Path(sys.argv[1]), bands=1, height=2048, width=2048, dtype="uint8", classes=classes)
noise = np.random.default_rng(0).integers(0, 256, (1, 512, 512), "uint8")
if sys.argv[2] == "finish":
    [blocks.write(row, col, noise) for row in range(4) for col in range(4)]
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
try:
    if sys.argv[2] != "finish":
        [blocks.write(row, col, noise) for row in range(4) for col in range(4)]
    blocks.finish(class_names=["land"] if classes else None)
except SaveError as error:
    print(error, type(error.__cause__).__name__, error.__cause__.errno)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["values", "classes"])
@pytest.mark.parametrize("step", ["write", "finish"])
def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path, step: str, kind: str) -> None:
    """A file that may not grow ends the scene with the system's words, at a block or at the end."""
    run = subprocess.run(
        [sys.executable, "-c", FILL, tmp_path, step, kind], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.strip() == (
        f"cannot write to {tmp_path}: {os.strerror(errno.EFBIG)}; make room there, or name another folder"
        f" OSError {errno.EFBIG}"
    )
    assert [line for line in run.stderr.splitlines() if not line.startswith("_tiff")] == []  # libtiff's own words
    assert list(tmp_path.iterdir()) == []


MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
import rasterio
from vllm_mmout.geo.raster.writing import GeoTiffBlocks
def written(side):
    size, classes = 512 * side, sys.argv[2] == "classes"
    noise = np.random.default_rng(0).integers(0, 1 if classes else 16, (1, 512, 512), "uint8")
    blocks = GeoTiffBlocks(Path(sys.argv[1]), bands=1, height=size, width=size, dtype="uint8", classes=classes)
    places = list(np.ndindex(side, side))
    for row, col in places if classes else np.random.default_rng(1).permutation(places).tolist():
        blocks.write(row, col, noise)
    before = rasterio.env.get_gdal_config("GDAL_CACHEMAX")
    blocks.finish(class_names=["land"] if classes else None).unlink()
    assert rasterio.env.get_gdal_config("GDAL_CACHEMAX") == before
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(*(written(side) for side in (8, 16)))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["values", "classes"])
def test_memory_does_not_grow_with_the_raster(tmp_path: Path, kind: str) -> None:
    """Four times the pixels take the same memory: values in any order of blocks, classes row by row.

    GDAL's cache is as large as it was before.
    """
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path, kind], capture_output=True, text=True, check=True, timeout=300
    )
    small, large = map(int, run.stdout.split())
    assert large - small < 24 << 10  # KiB; the pixels are 16 and 64 MiB
