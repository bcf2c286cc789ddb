"""Scenes that lie on a server, through the real engine."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from http_server import a_running_server, a_server  # noqa: F401 - fixtures
from scene_steps import GOOD, TILES, an_engine, generate, tiled  # noqa: F401 - a fixture among them
from scenes_for_tests import TILE, classes

from vllm_mmout import OutputParams
from vllm_mmout.cli import main
from vllm_mmout.errors import InputError
from vllm_mmout.geo.tiling.grid import TileGrid

rasterio = pytest.importorskip("rasterio", reason="it writes the scenes")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


@pytest.mark.parametrize("ranges", [True, False], ids=["parts", "whole"])
def test_the_result_of_a_scene_is_that_of_its_file(engine, server, tmp_path, ranges):
    """Given as an address, alone and in a list; its file in a folder is called as that on the server."""
    address = server.serve("/some/scene.tif", tiled(tmp_path / "in.tif"), ranges=ranges)
    np.testing.assert_array_equal(generate(engine, address).array, classes(GOOD))
    params = OutputParams(tile=TILE, path=f"{tmp_path}/out/")
    signed = f"{address}?signature={'secret' * 99}&name=other.png"
    for _ in range(2):  # the second time over the first result
        results = engine.generate([GOOD, signed], [TILES, params], use_tqdm=False)
        assert results[1].outputs.path == f"{tmp_path}/out/scene.tif"
        np.testing.assert_array_equal(results[1].outputs.array, classes(GOOD))
    assert {file.name.partition(".")[0] for file in (tmp_path / "out").iterdir()} == {"scene"}


def test_a_small_input_of_a_server(engine, server, tmp_path):
    """One that fits a tile is read whole."""
    address = server.serve("/small.tif", tiled(tmp_path / "in.tif", GOOD[:, :20, :30]))
    np.testing.assert_array_equal(generate(engine, address).array, classes(GOOD[:, :20, :30]))


def test_a_server_that_dies_in_the_middle_of_a_scene(engine, server, tmp_path, monkeypatch):
    """The tile that cannot be read is named, no file is left, and other requests do not suffer."""
    monkeypatch.setenv("MMOUT_FETCH_RETRIES", "1")
    pixels = np.random.default_rng(8).integers(0, 10000, (6, 320, 320), np.uint16)
    path = tiled(tmp_path / "in.tif", pixels, interleave="pixel")
    middle = path.stat().st_size // 2

    def dies(answer):
        if not answer.part[0] <= middle < answer.part[1]:
            answer.file(path)
        else:
            answer.close_connection = True

    address = server.answer("/scene.tif", dies)
    params = OutputParams(tile=TILE, path=str(tmp_path / "out.tif"))
    result, other = engine.generate([address + "?key=secret", GOOD], [params, TILES], use_tqdm=False)
    assert isinstance(result.error, InputError)
    number = int(str(result.error).split()[1])
    window = TileGrid(320, 320, TILE).window(number - 1)
    assert str(result.error).startswith(f"tile {number} of 100 ({window}): {address}: bytes ")
    assert 1 < number <= 60
    assert "secret" not in str(result.error)
    np.testing.assert_array_equal(other.outputs.array, classes(GOOD))
    assert [file.name for file in tmp_path.iterdir()] == ["in.tif"]
    server.serve("/scene.tif", path)
    np.testing.assert_array_equal(generate(engine, address).array, classes(pixels))


def test_the_command_takes_addresses(llm, server, tmp_path, monkeypatch, capsys):
    """Results in a folder are called as their files on the server; an error does not show what is secret."""

    @contextmanager
    def engine(*_, **__):
        yield llm

    monkeypatch.setattr("vllm_mmout.commands.engine.engine", engine)
    scene = server.serve("/scene.tif", tiled(tmp_path / "in.tif"))
    missing = server.address.replace("//", "//user:secret@") + "/missing.tif?secret"
    assert main(["run", "water-index", f"{scene}?key=1", missing, "-o", f"{tmp_path}/out/", "--tile", str(TILE)]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path}/out/scene.tif\n"
    assert f"{server.address}/missing.tif: the server answered 404 Not Found; check the address\n" in printed.err
    assert "secret" not in printed.err
