"""Scenes from buckets, with results in buckets, through engines."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
from buckets import bucket, held, put, s3  # noqa: F401 - fixtures
from scenes_for_tests import classes, generate, pixels, write

from vllm_mmout import OutputParams
from vllm_mmout.cli import main
from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.geo import read_raster

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


@pytest.fixture(name="scenes", scope="module")
def some_scenes(tmp_path_factory):
    """Two scenes on disk."""
    folder = tmp_path_factory.mktemp("scenes")
    for seed in (1, 2):
        write(folder / f"{seed}.tif", pixels(seed))
    return folder


def test_from_one_bucket_into_another(llm, bucket, scenes) -> None:  # noqa: F811
    """A scene in tiles and one in a single forward: named after their inputs, with the address as their path."""
    address = put(bucket + "in/a b.tif", scenes / "1.tif")
    result = generate(llm, address, path=bucket + "out/")
    assert result.path == bucket + "out/a b.tif"
    np.testing.assert_array_equal(read_raster(result.path).array, classes(pixels(1)))
    whole = generate(llm, address, path=bucket + "out/whole.png", tile=None)
    assert whole.path == bucket + "out/whole.png"
    assert set(held(bucket)[0]) == {"in/a b.tif", "out/a b.tif", "out/a b.tif.aux.xml", "out/whole.png"}


def test_what_would_be_overwritten_is_refused(llm, bucket, scenes) -> None:  # noqa: F811
    """The input itself, and one of several results; so is a bucket that is not there, before the model runs."""
    address = put(bucket + "a.tif", scenes / "1.tif")
    with pytest.raises(SaveError, match="would be written over its own input s3://"):
        generate(llm, address, path=bucket)
    with pytest.raises(OptionError, match="several results of this call would be written to s3://"):
        llm.generate([address, address], OutputParams(path=bucket + "out/"), use_tqdm=False)
    with pytest.raises(SaveError, match="there is no bucket 'no-such-bucket-here'"):
        generate(llm, address, path="s3://no-such-bucket-here/out/")
    assert set(held(bucket)[0]) == {"a.tif"}


def run(*arguments):
    """The command ``vllm-mmout run`` in a process of its own: its status, output and errors."""
    command = [sys.executable, "-m", "vllm_mmout.cli", "run", "water-index", *arguments]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=1200)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.slow
def test_a_folder_of_a_bucket_on_the_command_line(bucket, scenes) -> None:  # noqa: F811
    """Each scene below it is one input; results keep the folders, so that equal names do not meet."""
    for name in ("1.tif", "x/a.tif", "y/a.tif"):
        put(f"{bucket}scenes/{name}", scenes / ("1.tif" if name == "1.tif" else "2.tif"))
    put(f"{bucket}scenes/notes.txt", b"no scene")
    expected = [f"{bucket}out/{name}" for name in ("1.tif", "x/a.tif", "y/a.tif")]
    assert run(f"{bucket}scenes/", "-o", f"{bucket}out/")[:2] == (0, expected)
    np.testing.assert_array_equal(read_raster(expected[2]).array, classes(pixels(2)))


def test_a_key_that_no_store_takes_fails_its_own_scene(llm, bucket, scenes, monkeypatch, capsys) -> None:  # noqa: F811
    """The key is reported as one failed input, and the other scenes of the folder run."""
    for name in ("1.tif", "/1.tif", "x/../2.tif", "tab\t.tif", "x/2.tif"):
        put(f"{bucket}scenes/{name}", scenes / "1.tif")
    monkeypatch.setattr("vllm_mmout.commands.engine.engine", lambda *_, **__: nullcontext(llm))
    assert main(["run", "water-index", f"{bucket}scenes/", "-o", f"{bucket}out/"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"{bucket}out/1.tif", f"{bucket}out/x/2.tif"]
    assert f'{bucket}scenes//1.tif has an empty part of its path, or "." or ".."' in printed.err
    assert f"'{bucket}scenes/tab\\t.tif' has a control character" in printed.err
    assert "3 of 5 inputs failed" in printed.err
    assert main(["run", "water-index", f"{bucket}scenes/x/../", "-o", f"{bucket}out/"]) == 1


def test_wrong_folders_on_the_command_line(bucket, scenes) -> None:  # noqa: F811
    """They are refused before an engine is started."""
    address = put(f"{bucket}in/a.tif", scenes / "1.tif")
    put(f"{bucket}in/a.png", b"")
    status, _, said = run(f"{bucket}in/", "-o", f"{bucket}out/")
    assert (status, "several inputs are called a; their results" in said) == (2, True), said
    status, _, said = run(address, "-o", "s3://no-such-bucket-here/out/")
    assert (status, "there is no bucket 'no-such-bucket-here'" in said) == (1, True), said
