"""StoredRaster where its file was replaced, or is gone."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from on_disk import stored

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.outputs.stored import StoredRaster

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

ONES, TWOS = np.ones((1, 20, 30), "uint8"), np.full((1, 20, 30), 2, "uint8")


def uses(raster: StoredRaster, folder: Path) -> list[Callable[[], object]]:
    return [
        raster.read,
        lambda: raster.read(Window(0, 0, 1, 1)),
        lambda: raster.array,
        lambda: raster.valid,
        lambda: raster.image,
        lambda: raster.to_bytes("tif"),
        lambda: raster.to_bytes("npz"),
        lambda: raster.save(folder / "other.tif"),
        lambda: raster.save(folder / "other.png"),
    ]


def test_another_result_in_its_place_is_not_read_as_its_own(tmp_path: Path) -> None:
    """After a second result took the name, every use of the first is an error, and the second reads its own."""
    first, second = stored(ONES, tmp_path), stored(TWOS, tmp_path)
    path = first.save(tmp_path / "mask.tif")
    second.save(path)
    for use in uses(first, tmp_path):
        with pytest.raises(InputError, match=r"mask\.tif was replaced since this result was written; open it again"):
            use()
    np.testing.assert_array_equal(second.array, TWOS)
    np.testing.assert_array_equal(StoredRaster(path).array, TWOS)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_written_over_in_place_counts_as_another(tmp_path: Path) -> None:
    """The same file with other bytes, as many and as old or not, is told by its size or its time."""
    raster = stored(ONES, tmp_path)
    path = raster.save(tmp_path / "mask.tif")
    found = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    with pytest.raises(InputError, match="was replaced"):
        raster.read()
    path.write_bytes(path.read_bytes() + b" ")
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(InputError, match="was replaced"):
        raster.read()


@pytest.mark.parametrize("reader", ["saved", "opened"])
def test_saving_over_its_own_file_is_no_other_result(tmp_path: Path, reader: str) -> None:
    """Saved twice under one name, by another spelling of it too, a raster reads on."""
    raster = stored(ONES, tmp_path)
    path = raster.save(tmp_path / "mask.tif")
    if reader == "opened":
        raster = StoredRaster(path)
    (tmp_path / "folder").mkdir()
    for again in (path, tmp_path / "folder" / ".." / "mask.tif"):
        raster.save(again)
        np.testing.assert_array_equal(raster.array, ONES)


def test_a_copy_of_a_file_that_is_gone_says_what_to_do(tmp_path: Path) -> None:
    """What was pickled before the file was moved asks to be saved first, whichever way it is used."""
    raster = stored(ONES, tmp_path)
    twin = pickle.loads(pickle.dumps(raster))  # noqa: S301 - our own bytes
    raster.save(tmp_path / "mask.tif")
    for use in uses(twin, tmp_path):
        with pytest.raises(InputError, match=r"is gone \(its owner saved.*: /.*\.part; save it before it is copied"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["mask.tif"]


def test_what_was_pickled_after_it_was_saved_reads_the_saved_file(tmp_path: Path) -> None:
    """The remedy works: a copy made after the save knows the file."""
    raster = stored(ONES, tmp_path)
    raster.save(tmp_path / "mask.tif")
    twin = pickle.loads(pickle.dumps(raster))  # noqa: S301 - our own bytes
    np.testing.assert_array_equal(twin.array, ONES)
    assert twin.to_bytes("tif") == raster.to_bytes("tif")
