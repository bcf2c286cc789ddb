"""A full disk is said to be one: to the client with the folder's flag, to the operator with the folder itself."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from vllm_mmout.errors import SaveError
from vllm_mmout.serving.errors import api_error
from vllm_mmout.serving.inputs.uploads import Upload
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.response.store import ResultStore

pytestmark = pytest.mark.engine


def said_of(error, caplog):
    """Return the client's answer and the log."""
    caplog.clear()
    told = api_error(error, "request-1")
    assert (told.status, told.type) == (507, "InsufficientStorageError")
    assert "disk is full" in told.message
    return told.message, caplog.text


def test_a_disk_that_is_full_of_uploads(monkeypatch, caplog):
    """The folder is that of TMPDIR; /dev/full is a disk without room."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda *_: full)
        with pytest.raises(OSError, match="No space left") as raised:
            Upload.begun("scene.tif").write(b"abc")
    told, logged = said_of(raised.value, caplog)
    assert "TMPDIR" in told
    assert tempfile.gettempdir() in logged


def test_a_disk_that_is_full_of_results(monkeypatch, caplog, tmp_path):
    """The folder is that of --mmout-results-dir, for results, scenes that are written, and the jobs' database."""
    store = ResultStore(tmp_path / "results", 60.0, 1000)
    monkeypatch.setattr(os, "utime", _full)
    with pytest.raises(OSError, match="No space left") as raised:
        store.keep(Encoded(b"abc", "png"))
    scene = SaveError("cannot write /srv/a.tif: No space left on device")
    scene.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    for error, folder in ((raised.value, str(store.folder)), (scene, "/srv/a.tif"), (_full_database(), "is full")):
        told, logged = said_of(error, caplog)
        assert "--mmout-results-dir" in told
        assert folder in logged
        assert folder not in told or folder == "is full"
    store.close()


def _full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def _full_database():
    """The error of SQLite where a database may grow no more."""
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError) as raised:
            database.execute("CREATE TABLE t (x)")
    database.close()
    return raised.value
