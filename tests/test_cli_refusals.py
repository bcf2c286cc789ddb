"""What commands refuse before they start an engine, and what they say where none is installed."""

from __future__ import annotations

import os
import sys
from unittest import mock

import pytest

import vllm_mmout
from vllm_mmout.cli import main


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in this process, in the folder `tmp_path`; return its status and the lines that it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "vllm", None)  # importing it raises an ImportError

    def run(*arguments):
        with mock.patch.dict(os.environ):
            try:
                status = main(arguments)
            except SystemExit as ended:
                status = ended.code
        printed = capsys.readouterr()
        return status, printed.out.splitlines(), printed.err.splitlines()

    return run


ONE = ["run", "water-index", "{a}", "-o", "o.tif"]
REFUSED = {
    "no command": ([], 2, "COMMAND"),
    "an unknown command": (["nonsense"], 2, "invalid choice: 'nonsense'"),
    "an unknown flag": (["processors", "--bad"], 2, "unknown arguments: --bad"),
    "no output": (["run", "water-index", "{a}"], 2, "-o/--out"),
    "a list that is none": ([*ONE, "--indices", "1,x"], 2, "indices must be a list of whole numbers, got ['1', 'x']"),
    "bands and indices": ([*ONE, "--indices", "1", "--bands", "1"], 2, "bands and indices are both set"),
    "a window of three numbers": (
        [*ONE, "--window", "1,2,3"],
        2,
        "window must be 4 whole numbers or a table of row, col, height, width, got",
    ),
    "a window that is none": (
        [*ONE, "--window", "all"],
        2,
        "window must be 4 whole numbers or a table of row, col, height, width, got ['all']",
    ),
    "an unknown blend": ([*ONE, "--blend", "smooth"], 2, "invalid choice: 'smooth'"),
    "too much overlap": (
        [*ONE, "--tile", "30", "--overlap", "16"],
        2,
        "overlap must be at most half a tile, got 16 for tile=30",
    ),
    "a scale of zero": ([*ONE, "--scale", "1,0,1,1,1,1"], 2, "scale must be finite and not 0"),
    "band 0": ([*ONE, "--bands", "0,1"], 2, "bands must count from 1, got 0"),
    "a missing file": (["run", "water-index", "no.tif", "-o", "o.tif"], 1, "no such file: no.tif"),
    "a missing folder": (["run", "water-index", "{a}", "-o", "no/o.tif"], 1, "there is no folder no; make it first"),
    "a file instead of a folder": (["run", "water-index", "{a}", "{b}", "-o", "{a}"], 2, "name a folder"),
    "two formats": ([*ONE, "--output-format", "png"], 2, "-o o.tif names another format than --output-format png"),
    "no format": ([*ONE, "--output-format", "bmp"], 2, "--output-format bmp is no format (known: "),
    "no suffix": (["run", "water-index", "{a}", "-o", "mask"], 2, "for a folder write mask/"),
    "two inputs of one name": (["run", "water-index", "{a}", "./{a}", "-o", "out"], 2, "called a;"),
    "a missing model folder": (
        ["run", "./no-model", "{a}", "-o", "o.tif"],
        1,
        "there is no model folder ./no-model (embedded models: water-index)",
    ),
    "a folder without a model": (["run", ".", "{a}", "-o", "o.tif"], 1, "the folder . holds no config.json"),
    "a demo over a file": (["demo", "-o", "{a}"], 1, "cannot make the folder"),
}


@pytest.mark.parametrize(("arguments", "status", "says"), REFUSED.values(), ids=REFUSED)
def test_what_can_be_known_before_is_refused_before(command, tmp_path, arguments, status, says):
    """A command that cannot work says so in one line and writes nothing, before it imports the engine."""
    for name in ("a.tif", "b.tif"):
        (tmp_path / name).touch()
    found, printed, errors = command(*(text.format(a="a.tif", b="b.tif") for text in arguments))
    assert (found, printed) == (status, [])
    assert says in errors[-1]
    assert errors[-1].startswith("vllm-mmout")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.tif", "b.tif"]


def test_folders_that_differ_after_a_dot_are_not_refused_as_equal(command, tmp_path):
    """Their results have the whole names. The next step, importing the engine, fails here."""
    folders = [f"HLS.{version}" for version in ("v2.0", "v2.1")]
    for folder in folders:
        (tmp_path / folder).mkdir()
    status, _, errors = command("run", "water-index", *folders, "-o", "out/")
    assert (status, "vLLM cannot be imported" in errors[-1]) == (1, True), errors


@pytest.mark.parametrize("name", ["doctor", pytest.param("demo", marks=pytest.mark.heavy)])
def test_without_an_engine(command, name):
    """Where vLLM cannot be imported, a command says why, and what to install."""
    status, printed, errors = command(name)
    assert status == 1
    assert "vllm-mmout[cpu]" in "\n".join(printed + errors)
    causes = ("import of vllm halted", "No module named 'torch'")  # the second where there is no torch either
    assert any(cause in "\n".join(printed + errors) for cause in causes)


def test_version(command):
    """The command prints the package's version."""
    assert command("--version") == (0, [f"vllm-mmout {vllm_mmout.__version__}"], [])


@pytest.mark.parametrize("name", ["scene.tif", "water.tif", "water.png"])
def test_a_demo_replaces_no_file_of_others(name, command, tmp_path):
    """A file that no demo wrote is named, and stays as it is; no engine is looked for."""
    (tmp_path / name).write_bytes(b"mine")
    status, printed, errors = command("demo", "-o", ".")
    assert (status, printed) == (1, [])
    assert f" {name} " in errors[0]
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"mine"
