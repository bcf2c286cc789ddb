"""Temporary folders of servers that were killed are removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from vllm_mmout.serving.response.result_files import ResultsFolder
from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.serving.response.temporary_folders import PREFIX, TemporaryFolder, remove_abandoned

KILLED = """
import os, signal, tempfile
from vllm_mmout.serving.response.result_files import ResultsFolder
from vllm_mmout.serving.response.temporary_folders import TemporaryFolder
folder = TemporaryFolder()
ResultsFolder(folder.path)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with nothing else in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed(temporary):
    """Leave the folder of a server that was killed."""
    before = {*temporary.iterdir()}
    subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(temporary)}, check=False)
    (left,) = {*temporary.iterdir()} - before
    return left


def test_what_a_killed_server_left_is_removed(temporary):
    """A server that lives keeps its folder, whether its launcher or a server in it holds the lock."""
    dead, lives = killed(temporary), TemporaryFolder()
    orphaned = killed(temporary)
    server = ResultsFolder(orphaned)
    assert remove_abandoned() == [dead]
    assert {*temporary.iterdir()} == {lives.path, orphaned}
    server.close()
    assert remove_abandoned() == [orphaned]
    lives.remove()
    assert not [*temporary.iterdir()]


def test_what_is_not_provably_ours_is_left(temporary):
    """A folder without a lock file, a folder that others can read, and a link may be anybody's."""
    (temporary / f"{PREFIX}plain").mkdir(mode=0o700)
    shared = killed(temporary)
    shared.chmod(0o755)
    elsewhere = temporary / "elsewhere"
    killed(temporary).rename(elsewhere)
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    assert remove_abandoned() == []
    assert len([*temporary.iterdir()]) == 4


def test_the_folder_of_a_store_goes_with_it(temporary):
    """Nothing is left of a store that is closed."""
    store = ResultStore.temporary(60.0, 1000)
    assert remove_abandoned() == []
    store.close()
    assert not [*temporary.iterdir()]
