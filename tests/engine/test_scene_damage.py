"""Inputs of scenes that shrink, vanish, change or raise while they are read, or before their turn."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
import tifffile
from scene_ends import BAD, BAD_TILE, settings
from scene_steps import (
    ECHO,
    GOOD,
    TILES,
    UnpluggedError,
    an_engine,  # noqa: F401 - fixtures
    before_window,
    generate,
    router_of,
    tiled,
)
from scenes_for_tests import TILE, classes, pixels, write
from water_oracle import echo, scene

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError
from vllm_mmout.geo.tiling.grid import TileGrid

pytest.importorskip("rasterio", reason="it writes the scenes")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


def assert_names_a_tile(error, least, path):
    """An error of the input that says which tile, where it lies, and in what file."""
    assert isinstance(error, InputError)
    number = int(str(error).split()[1])
    window = TileGrid(75, 90, TILE).window(number - 1)
    assert str(error).startswith(f"tile {number} of 9 ({window}): ")
    assert number >= least
    assert path.name in str(error)


@pytest.mark.parametrize("left", [20000, 10])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_file_that_shrinks_while_it_is_read(engine, tmp_path, left, as_file):
    """The tile that cannot be read is named; the result does not appear."""
    path = tiled(tmp_path / "in.tif")
    with before_window(3, lambda: os.truncate(path, left), path.name), path.open("rb") as file:
        results = engine.generate(
            [file if as_file else path, GOOD],
            OutputParams(tile=TILE),
            use_tqdm=False,
        )
    if not as_file:
        assert_names_a_tile(results[0].error, 4, path)
    assert isinstance(results[0].error, InputError)
    np.testing.assert_array_equal(results[1].outputs.array, classes(GOOD))


def test_a_file_with_a_damaged_segment(engine, tmp_path):
    """The tile that it belongs to is named."""
    path = tiled(tmp_path / "in.tif", interleave="pixel")
    with tifffile.TiffFile(path) as file:
        offset, count = file.pages[0].dataoffsets[4], file.pages[0].databytecounts[4]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * count)
    (result,) = engine.generate([path], OutputParams(tile=TILE, path=str(tmp_path / "out.tif")), use_tqdm=False)
    assert str(result.error).startswith(f"{BAD_TILE}: ")
    assert TileGrid(75, 90, TILE).window(4) == BAD
    assert_names_a_tile(result.error, 5, path)
    assert [file.name for file in tmp_path.iterdir()] == ["in.tif"]


def test_a_file_that_is_deleted_while_it_is_read(engine, tmp_path):
    """It is open, and read to its end."""
    path = tiled(tmp_path / "in.tif")
    with before_window(2, path.unlink):
        np.testing.assert_array_equal(generate(engine, path).array, classes(GOOD))


def test_a_file_object_that_raises_what_it_likes(engine, tmp_path):
    """A caller's own exception is that scene's error as it is; a SystemExit ends no process."""
    data = tiled(tmp_path / "in.tif").read_bytes()

    class File(io.BytesIO):
        error = None

        def read(self, *args):
            if self.error is not None:
                raise self.error
            return super().read(*args)

    for error, kind in ((UnpluggedError("out"), UnpluggedError), (SystemExit(3), InputError)):
        file = File(data)
        with before_window(1, lambda file=file, error=error: setattr(file, "error", error)):
            (result,) = engine.generate([file], TILES, use_tqdm=False)
        assert isinstance(result.error, kind)


@pytest.mark.parametrize("form", ["bytes in a file", "a file on the disk"])
def test_scenes_in_open_files_that_wait_for_others(engine, tmp_path, form):
    """Eight scenes, one at a time: those that wait are opened once, since a file object may not give twice."""
    arrays = [pixels(seed) for seed in range(8)]
    paths = [tiled(tmp_path / f"{number}.tif", array) for number, array in enumerate(arrays)]
    files = [io.BytesIO(path.read_bytes()) if form.startswith("bytes") else path.open("rb") for path in paths]
    with settings(router_of(engine), max_scenes=1):
        results = engine.generate(files, TILES, use_tqdm=False)
    for file in files:
        file.close()
    for result, array in zip(results, arrays, strict=True):
        np.testing.assert_array_equal(result.outputs.array, classes(array))


def test_a_file_that_changes_while_its_scene_waits(engine, tmp_path):
    """It is opened again when its turn comes, and is then another one, or gone; the others do not suffer."""
    paths = [tiled(tmp_path / f"{number}.tif") for number in range(4)]
    small = scene(6, 20, 20)

    write(tmp_path / "small.tif", small)

    def change():
        (tmp_path / "small.tif").replace(paths[2])
        paths[3].unlink()

    singles = [scene(seed) for seed in range(40)]
    with settings(router_of(engine), max_scenes=1, max_in_flight=1), before_window(1, change, "75 x 90"):
        results = engine.generate(
            [paths[0], pixels(3), paths[2], paths[3], *singles], [*[TILES] * 4, *[ECHO] * 40], use_tqdm=False
        )
    np.testing.assert_array_equal(results[0].outputs.array, classes(GOOD))
    np.testing.assert_array_equal(results[1].outputs.array, classes(pixels(3)))
    assert "was changed while it waited" in str(results[2].error)
    assert isinstance(results[3].error, InputError)
    assert [result.outputs for result in results[4:]] == [echo(single) for single in singles]
