"""Ways in which the database of jobs fails for a while, each with errors of SQLite itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def read_only(board):
    """Nothing can be written; what is there can be read."""
    board._database._connection.execute("PRAGMA query_only = ON")
    yield
    board._database._connection.execute("PRAGMA query_only = OFF")


@contextmanager
def lost(board):
    """Nothing can be written or read."""
    with board._database._lock:  # SQLite crashes where a thread still uses what is closed
        board._database._connection.close()
    yield
    board._database._connection = None  # it is opened anew


@contextmanager
def disk_full(board):
    """No byte more fits on the disk."""
    filler = board.store.folder / "filler"
    with pytest.raises(OSError, match="No space left"):
        _fill(filler)
    yield
    filler.unlink()


def _fill(path):
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


@contextmanager
def small_disk(folder):
    """A disk of a few MB in a folder; skips the test where it may not be mounted."""
    folder.mkdir(mode=0o700)
    mount, umount = shutil.which("mount") or "mount", shutil.which("umount") or "umount"
    command = [mount, "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", folder]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted by this user")
    try:
        yield
    finally:
        subprocess.run([umount, "--lazy", folder], check=True)
