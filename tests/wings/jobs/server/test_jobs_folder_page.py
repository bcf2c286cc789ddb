"""What docs/jobs-folder.md says of files, copies and moves of the folder is so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from pages import all_blocks
from test_scene_board import added, completed, content

PAGE = "jobs-folder.md"


def block(kind, part):
    """Return the one block of the page that holds a text."""
    (shown,) = [shown for shown in all_blocks(kind) if shown.page == PAGE and part in shown.text]
    return shown.text


@pytest.fixture
def walk(tmp_path, monkeypatch):
    """Go to the folder in which a reader has the folder of results."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_files_that_the_page_lists(board, clock):
    """A folder in use holds the files of the table and no others."""
    done = completed(board, clock)
    names = {path.name for path in board.store.folder.iterdir()}
    table = {"scenes.sqlite", "scenes.sqlite-wal", "scenes.sqlite-shm", ".lock", f".server-{board.server}"}
    assert names == {*table, *done.stored}
    assert all(len(name.partition(".")[0]) == 43 for name in done.stored)


@pytest.mark.parametrize(("way", "copy"), [("cp", "backup"), ("VACUUM", "backup-live")])
def test_a_server_starts_on_a_copy(way, copy, make_board, clock, walk):
    """A copy made as the page says answers for finished jobs, and starts jobs of addresses again."""
    board = make_board(walk / "results")
    done = completed(board, clock)
    uploaded, addressed = added(board), added(board, request='{"images":["http://x/a.tif"],"given":{}}')
    if way == "cp":
        board.close()
        board.store.close()
        subprocess.run(["/bin/sh", "-ec", block("", "cp -a")], check=True)
    else:
        exec(block("python", "VACUUM"), {})  # noqa: S102 - the pages are our own
        assert {path.name for path in Path(copy).iterdir()} == {"scenes.sqlite", *done.stored}
    restored = make_board(walk / copy)
    assert restored.get(done.id) == done
    assert content(restored, done.outputs[0].stored) == b"pixels"
    assert restored.get(addressed.id).server == restored.server
    assert restored.get(uploaded.id).error.code == "server_ended"


def test_a_folder_that_was_moved(make_board, clock, walk):
    """A moved folder has its jobs and results."""
    board = make_board(walk / "results")
    done = completed(board, clock)
    board.close()
    board.store.close()
    shutil.move("results", "elsewhere")
    moved = make_board(walk / "elsewhere")
    assert moved.get(done.id) == done
    assert content(moved, done.outputs[0].stored) == b"pixels"
