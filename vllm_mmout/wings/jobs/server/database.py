"""SceneDatabase: the jobs of all servers of a folder, in SQLite."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.jobs.server.job import SceneError, SceneJob, SceneOutput

_VERSION: Final = 1
_PATIENCE_S: Final = 60.0
"""Seconds to wait for others that use the file."""
_COLUMNS: Final = SceneJob.__struct_fields__
_JSON: Final = ("outputs", "error")
"""Columns that are JSON."""
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
    preview_asked INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX scenes_by_status ON scenes (status);
"""
_UNFINISHED: Final = "status IN ('queued', 'in_progress')"


class SceneDatabase:
    """What is known of every job, the same for every server of a folder. All methods block; threads may share one."""

    def __init__(self, path: Path, make_folder: Callable[[], object] = lambda: None) -> None:
        self.path = path
        self._make_folder = make_folder
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        with self._using():
            pass

    def add(self, job: SceneJob, *, most: int, most_bytes: int) -> int | None:
        """Add a job; gives how many are unfinished, where that is too many for one more."""
        with self._changing() as connection:
            row = connection.execute(f"SELECT COUNT(*), COALESCE(SUM(nbytes), 0) FROM scenes WHERE {_UNFINISHED}")
            count, nbytes = row.fetchone()
            if count >= most or (count and nbytes + job.nbytes > most_bytes):
                return int(count)
            values = _as_row({name: getattr(job, name) for name in _COLUMNS})
            names, places = ", ".join(values), ", ".join(f":{name}" for name in values)
            connection.execute(f"INSERT INTO scenes ({names}) VALUES ({places})", values)
        return None

    def get(self, job_id: str) -> SceneJob | None:
        """A job by its id."""
        with self._using() as connection:
            rows = _rows(connection, "WHERE id = ?", job_id)
        return next(iter(_jobs(rows)), None)

    def page(self, limit: int, after: str | None, order: Literal["asc", "desc"]) -> tuple[list[SceneJob], bool] | None:
        """Some jobs after one of these, and whether more follow; None if there is no such one to begin after."""
        sign = ">" if order == "asc" else "<"
        with self._using() as connection:
            found: tuple[int, ...] | None = ()
            if after is not None:
                found = connection.execute("SELECT number FROM scenes WHERE id = ?", (after,)).fetchone()
            if found is None:
                return None
            where = f"WHERE number {sign} ?" if found else ""
            rows = _rows(connection, f"{where} ORDER BY number {order} LIMIT ?", *found, limit + 1)
        return _jobs(rows[:limit]), len(rows) > limit

    def change(self, job_id: str, **values: Any) -> bool:
        """Change what is known of a job; False, and nothing is changed, if it is finished or was deleted."""
        with self._using() as connection:
            return _update(connection, "id", job_id, values) > 0

    def delete(self, job_id: str) -> SceneJob | None:
        """Forget a job, and give it as it was; None if there is none."""
        with self._changing() as connection:
            rows = _rows(connection, "WHERE id = ?", job_id)
            connection.execute("DELETE FROM scenes WHERE id = ?", (job_id,))
        return next(iter(_jobs(rows)), None)

    def ask_preview(self, job_id: str) -> None:
        """Tell the server that runs a job that somebody wants to see it."""
        with self._using() as connection:
            connection.execute(f"UPDATE scenes SET preview_asked = 1 WHERE id = ? AND {_UNFINISHED}", (job_id,))

    def running(self, server: str) -> dict[str, bool]:
        """The unfinished jobs of a server by their ids, and whether somebody has asked for a preview since."""
        with self._using() as connection:
            found = connection.execute(
                f"SELECT id, preview_asked FROM scenes WHERE server = ? AND {_UNFINISHED}", (server,)
            ).fetchall()
            asked = [(job_id,) for job_id, wanted in found if wanted]
            if asked:
                connection.executemany("UPDATE scenes SET preview_asked = 0 WHERE id = ?", asked)
        return {job_id: bool(wanted) for job_id, wanted in found}

    def servers(self) -> list[str]:
        """The servers of all unfinished jobs."""
        with self._using() as connection:
            return [row[0] for row in connection.execute(f"SELECT DISTINCT server FROM scenes WHERE {_UNFINISHED}")]

    def fail_all(self, server: str, error: SceneError, now: float, expires_at: float) -> list[str]:
        """Let all unfinished jobs of a server fail; gives the names in the store that they may have used."""
        with self._changing() as connection:
            rows = _rows(connection, f"WHERE server = ? AND {_UNFINISHED}", server)
            values = {"status": "failed", "completed_at": now, "expires_at": expires_at, "error": error, "outputs": ()}
            _update(connection, "server", server, values)
        return [name for job in _jobs(rows) for name in job.stored]

    def finished(self) -> list[SceneJob]:
        """All jobs that are finished."""
        with self._using() as connection:
            rows = _rows(connection, f"WHERE NOT {_UNFINISHED}")
        return _jobs(rows)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """The connection, in a transaction that no other server's comes into."""
        with self._using() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite ends it itself where the disk is full
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone; opened anew where the file was removed."""
        with self._lock:
            if self._connection is None or self._opened != _identity(self.path):
                self._close()
                self._make_folder()
                self._connection = _connected(self.path)
                self._opened = _identity(self.path)
            yield self._connection


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to the file, in which the table is."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            connection, version, tables = _tried(path)
            break
        except sqlite3.DatabaseError as error:
            # Who begins and who ends such a file has it alone, and SQLite itself does not wait for that.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise OptionError(
                    f"{path} is no file of jobs ({error}); remove it, or choose another folder"
                ) from error
        time.sleep(0.01)
    if version == _VERSION or (not version and not tables):
        return connection
    connection.close()
    if not version:
        raise OptionError(f"{path} is no file of jobs, but has {tables} tables of others; choose another folder")
    raise OptionError(f"{path} was made by another release; choose another folder, or remove the file")


def _tried(path: Path) -> tuple[sqlite3.Connection, int, int]:
    """A connection, with the version that the file had and the number of its tables; it has ours where it had none."""
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


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _update(connection: sqlite3.Connection, column: str, value: str, changed: dict[str, Any]) -> int:
    """Change the unfinished jobs that have a value in a column; gives their number."""
    places = ", ".join(f"{name} = :{name}" for name in changed)
    statement = f"UPDATE scenes SET {places} WHERE {column} = :_{column} AND {_UNFINISHED}"
    return connection.execute(statement, {**_as_row(changed), f"_{column}": value}).rowcount


def _as_row(values: dict[str, Any]) -> dict[str, Any]:
    return {name: msgspec.json.encode(value).decode() if name in _JSON else value for name, value in values.items()}


def _rows(connection: sqlite3.Connection, where: str, *values: object) -> list[dict[str, Any]]:
    """Jobs as they are stored; made `_jobs` of outside of a transaction, which one that is damaged must not undo."""
    rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM scenes {where}", values).fetchall()
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]


def _jobs(rows: list[dict[str, Any]]) -> list[SceneJob]:
    return [_job(row) for row in rows]


def _job(values: dict[str, Any]) -> SceneJob:
    values["outputs"] = msgspec.json.decode(values["outputs"], type=tuple[SceneOutput, ...])
    values["error"] = msgspec.json.decode(values["error"], type=SceneError | None)
    return SceneJob(**values)
