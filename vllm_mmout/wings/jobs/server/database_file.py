"""Open the SQLite file of the job database, and create its table."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

from vllm_mmout.errors import OptionError

_VERSION: Final = 4
_PATIENCE_S: Final = 60.0
"""Seconds to wait if another connection has locked the database file."""
_TABLE: Final = """
CREATE TABLE scenes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    server TEXT NOT NULL,
    model TEXT NOT NULL,
    name TEXT NOT NULL,
    nbytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    tiles_done INTEGER NOT NULL,
    tiles_total INTEGER,
    started_at REAL,
    completed_at REAL,
    expires_at REAL,
    outputs TEXT NOT NULL,
    error TEXT NOT NULL,
    request TEXT,
    starts INTEGER NOT NULL,
    video TEXT NOT NULL,
    delivery TEXT NOT NULL,
    preview_asked INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX scenes_by_status ON scenes (status);
"""


def connected(path: Path) -> sqlite3.Connection:
    """Connect to the job database at a path. Create the file and its table if they do not exist.

    Raises:
        OptionError: the file is not a job database, or was made by another release of vllm-mmout.

    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            connection, version, tables = _connect_once(path)
            break
        except sqlite3.DatabaseError as error:
            # Switching a file to WAL mode, and closing its last connection, lock it exclusively. SQLite's own timeout
            # does not apply to these locks.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise OptionError(
                    f"{path} is not a job database ({error}); remove it, or choose another folder"
                ) from error
        time.sleep(0.01)
    if version == _VERSION or (not version and not tables):
        return connection
    connection.close()
    if not version:
        raise OptionError(
            f"{path} is not a job database, but has {tables} tables of another program; choose another folder"
        )
    raise OptionError(f"{path} was made by another release of vllm-mmout; choose another folder, or remove the file")


def _connect_once(path: Path) -> tuple[sqlite3.Connection, int, int]:
    """Connect to the database file in a single attempt, and create the table if the file is empty.

    Returns:
        The connection, and the version and number of tables that the file had before.

    """
    connection = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if not version and not tables:
            for statement in filter(str.strip, _TABLE.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection, version, tables


def identity(path: Path) -> tuple[int, int] | None:
    """Return (device number, inode number) of a file. Return None if the file is missing.

    The numbers change when the file is replaced.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
