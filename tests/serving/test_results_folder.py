"""ResultsFolder: several servers in one folder, each seen to live until its process ends."""

from __future__ import annotations

import gc
import shutil
import signal
import subprocess
import sys

import pytest
from files_open import open_below

from vllm_mmout.serving.response.result_files import ResultsFolder

SERVER = """
import sys
from pathlib import Path

from vllm_mmout.serving.response.result_files import ResultsFolder

assert "vllm" not in sys.modules
folder = ResultsFolder(Path(sys.argv[1]))
(folder.work / "part").write_bytes(b"x")
print(folder.server, flush=True)
sys.stdin.readline()
"""
"""What a process does that is a server."""


@pytest.fixture
def folder(tmp_path):
    """A server's."""
    folder = ResultsFolder(tmp_path / "results")
    yield folder
    folder.close()


@pytest.fixture
def server(folder):
    """Another process that is a server in the same folder, and its name there."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER, str(folder.path)], **pipes) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


def test_servers_have_folders_of_their_own(folder):
    """What a server works on is for its user alone, and goes when it leaves."""
    other = ResultsFolder(folder.path)
    assert other.work != folder.work
    assert folder.work.stat().st_mode & 0o777 == 0o700
    assert folder.lives(other.server)
    assert other.lives(folder.server)
    (other.work / "part").write_bytes(b"x")
    other.close()
    other.close()
    assert not other.work.exists()
    assert not folder.lives(other.server)
    assert folder.work.exists()


@pytest.mark.parametrize("end", ["killed", "ended"])
def test_a_server_lives_as_long_as_its_process(folder, server, end):
    """Nothing of a living server is touched; of one that was killed it is removed, one that ends does so itself."""
    process, name = server
    assert folder.lives(name)
    assert folder.remove_dead() == []
    assert (folder.work_of(name) / "part").exists()
    if end == "killed":
        process.send_signal(signal.SIGKILL)
    else:
        process.stdin.close()
    process.wait(120)
    assert not folder.lives(name)
    assert folder.work_of(name).exists() == (end == "killed")
    assert folder.remove_dead() == ([name] if end == "killed" else [])
    assert not folder.work_of(name).exists()
    assert folder.lives(folder.server)


def test_a_folder_whose_server_never_lived_goes(folder):
    """What a server left that was killed while it began is removed, what only looks like it stays."""
    begun, other = folder.path / f".server-{'0' * 32}", folder.path / ".server-notes"
    begun.mkdir()
    other.mkdir()
    assert folder.remove_dead() == ["0" * 32]
    assert not begun.exists()
    assert other.exists()


def test_a_folder_that_was_cleaned_away_is_entered_again(folder):
    """After somebody removed it the server is seen to live again, and keeps one file open for that."""
    for _ in range(3):
        shutil.rmtree(folder.path)
        folder.enter()
    assert folder.work.is_dir()
    other = ResultsFolder(folder.path)
    assert other.lives(folder.server)
    other.close()
    assert open_below(folder.path) == [str(folder.work / ".lock")]


def test_a_folder_goes_with_its_object(folder):
    """A server that forgets to leave leaves nothing."""
    other = ResultsFolder(folder.path)
    work = other.work
    del other
    gc.collect()
    assert not work.exists()
