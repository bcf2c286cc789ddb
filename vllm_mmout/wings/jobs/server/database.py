"""Store the jobs of all servers that share a folder in an SQLite table."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from vllm_mmout.wings.jobs.server.database_file import connected, identity
from vllm_mmout.wings.jobs.server.job import Delivery, SceneError, SceneJob, SceneOutput, VideoSettings

_COLUMNS: Final = SceneJob.__struct_fields__
_JSON: Final = ("outputs", "error", "video", "delivery")
"""Columns of the jobs table that hold JSON text."""
_UNFINISHED: Final = "status IN ('queued', 'in_progress')"
MOST_STARTS: Final = 3
"""Maximum number of starts of a job. The limit protects the other servers from a job that crashes its server."""
NOBODY: Final = ""
"""Value of the column ``server`` for a released job, which any server may take over."""
_WORN_OUT: Final = f"(starts >= {MOST_STARTS})"
_STARTABLE: Final = f"(request IS NOT NULL AND NOT {_WORN_OUT})"
_QUEUED_VALUES: Final = {
    "status": "queued",
    "tiles_done": 0,
    "tiles_total": None,
    "started_at": None,
    "expires_at": None,
    "outputs": (),
    "error": None,
}
"""Column values that reset a job in the jobs table, so that the job runs again from its beginning."""


class SceneDatabase:
    """SQLite database with the jobs of all servers on a shared folder. All methods block and are thread-safe."""

    def __init__(self, path: Path, make_folder: Callable[[], object] = lambda: None) -> None:
        self.path = path
        self._make_folder = make_folder
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        with self._using():
            pass

    def add(self, job: SceneJob, *, most: int, most_bytes: int) -> int | None:
        """Add a job to the database, unless a limit is reached. The limits apply to all unfinished jobs together.

        Args:
            job: the job.
            most: limit of unfinished jobs.
            most_bytes: limit of the input bytes that all unfinished jobs hold together.

        Returns:
            None if the job was added, else the number of unfinished jobs.

        """
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
        """Return the job with the id ``job_id``, or None if it does not exist."""
        with self._using() as connection:
            rows = _rows(connection, "WHERE id = ?", job_id)
        return next(iter(_jobs(rows)), None)

    def page(
        self, limit: int, after: str | None, order: Literal["asc", "desc"], kind: str = ""
    ) -> tuple[list[SceneJob], bool] | None:
        """Return one page of the jobs whose ids have the prefix ``kind``, and whether more jobs follow.

        Args:
            limit: maximum number of jobs on the page.
            after: id of the job after which the page starts, or None to start with the first job.
            order: "asc" lists the oldest jobs first, "desc" the newest.
            kind: prefix of the ids to list.

        Returns:
            The jobs and whether more follow, or None if the job ``after`` does not exist.

        """
        sign = ">" if order == "asc" else "<"
        with self._using() as connection:
            number: tuple[int, ...] | None = ()
            if after is not None:
                number = connection.execute("SELECT number FROM scenes WHERE id = ?", (after,)).fetchone()
            if number is None:
                return None
            where = f"WHERE substr(id, 1, ?) = ? {f'AND number {sign} ?' if number else ''}"
            values = (len(kind), kind, *number, limit + 1)
            rows = _rows(connection, f"{where} ORDER BY number {order} LIMIT ?", *values)
        return _jobs(rows[:limit]), len(rows) > limit

    def change(self, job_id: str, *, of: str, **values: Any) -> bool:
        """Set columns in the database row of an unfinished job. The keyword arguments are the new values.

        Args:
            job_id: the id of the job.
            of: name of the server that must own the job.
            **values: the new values by column.

        Returns:
            False if nothing was changed: the job is finished, was deleted, or another server has taken it over.

        """
        with self._using() as connection:
            return _update(connection, "id = ? AND server = ?", values, job_id, of) > 0

    def delete(self, job_id: str) -> SceneJob | None:
        """Delete a job. Return the job in its last state, or None if it does not exist."""
        with self._changing() as connection:
            rows = _rows(connection, "WHERE id = ?", job_id)
            connection.execute("DELETE FROM scenes WHERE id = ?", (job_id,))
        return next(iter(_jobs(rows)), None)

    def ask_preview(self, job_id: str) -> None:
        """Record that a client wants a preview of an unfinished job. The job's server polls for such records."""
        with self._using() as connection:
            connection.execute(f"UPDATE scenes SET preview_asked = 1 WHERE id = ? AND {_UNFINISHED}", (job_id,))

    def running(self, server: str) -> dict[str, bool]:
        """Return a dict of a server's unfinished jobs: job id -> whether a client has asked for a preview.

        Only requests for a preview since the last call count.
        """
        with self._using() as connection:
            rows = connection.execute(
                f"SELECT id, preview_asked FROM scenes WHERE server = ? AND {_UNFINISHED}", (server,)
            ).fetchall()
            requested_ids = [(job_id,) for job_id, requested in rows if requested]
            if requested_ids:
                connection.executemany("UPDATE scenes SET preview_asked = 0 WHERE id = ?", requested_ids)
        return {job_id: bool(requested) for job_id, requested in rows}

    def servers(self) -> list[str]:
        """Return the names of all servers that have unfinished jobs."""
        with self._using() as connection:
            return [row[0] for row in connection.execute(f"SELECT DISTINCT server FROM scenes WHERE {_UNFINISHED}")]

    def release(self, job_id: str, server: str) -> bool:
        """Release a job, so that any server may restart it. Return False if the job cannot be restarted."""
        with self._using() as connection:
            where = f"id = ? AND server = ? AND {_STARTABLE}"
            return _update(connection, where, {**_QUEUED_VALUES, "server": NOBODY}, job_id, server) > 0

    def take_over(
        self, stopped_server: str, server: str, serves: Callable[[str], bool]
    ) -> tuple[list[SceneJob], list[str]]:
        """Assign unfinished jobs of a stopped server to ``server``. Skip jobs that ``server`` cannot restart.

        Args:
            stopped_server: name of the stopped server.
            server: name of the server that takes the jobs over.
            serves: returns whether ``server`` serves a model, by its name.

        Returns:
            The jobs, reset to the queue, and the names of files in the store that may be left of them.

        """
        with self._changing() as connection:
            rows = _rows(connection, f"WHERE server = ? AND {_UNFINISHED} AND {_STARTABLE}", stopped_server)
            taken = [row for row in rows if serves(row["model"])]
            for row in taken:
                _update(connection, "id = ?", {**_QUEUED_VALUES, "server": server}, row["id"])
        used = [name for row in taken for output in _outputs(row) for name in output.files]
        return [_job({**row, **_as_row({**_QUEUED_VALUES, "server": server})}) for row in taken], used

    def fail_all(
        self, server: str, error: SceneError, now: float, expires_at: float, *, worn_out: SceneError | None = None
    ) -> list[str]:
        """Mark the unfinished jobs of a stopped server as failed, except jobs that another server may restart.

        A job that can be started again waits for a server of its model. It gets ``expires_at`` at the first call, and
        fails once that time has passed.

        Args:
            server: name of the stopped server.
            error: the error of the jobs.
            now: the time, in seconds since 1970.
            expires_at: end of the waiting time, and the time when failed jobs expire, in seconds since 1970.
            worn_out: error of jobs that were started `MOST_STARTS` times. None: ``error``.

        Returns:
            The names of files in the store that may be left of the failed jobs.

        """
        with self._changing() as connection:
            of_server = f"server = ? AND {_UNFINISHED}"
            waiting = f"{of_server} AND {_STARTABLE} AND expires_at IS NULL"
            _update(connection, waiting, {"status": "queued", "expires_at": expires_at}, server)
            over = f"{of_server} AND NOT ({_STARTABLE} AND expires_at > ?)"
            rows = _rows(connection, f"WHERE {over}", server, now)
            values = {"status": "failed", "completed_at": now, "expires_at": expires_at, "outputs": (), "request": None}
            _update(connection, f"{over} AND {_WORN_OUT}", {**values, "error": worn_out or error}, server, now)
            _update(connection, over, {**values, "error": error}, server, now)
        return [name for job in _jobs(rows) for name in job.stored]

    def finished(self) -> list[SceneJob]:
        """Return all completed and failed jobs."""
        with self._using() as connection:
            rows = _rows(connection, f"WHERE NOT {_UNFINISHED}")
        return _jobs(rows)

    def close(self) -> None:
        """Close the connection to the database."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a write transaction, during which other servers cannot write."""
        with self._using() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # on a full disk SQLite has rolled back already
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """Yield the SQLite connection while holding its lock. Reconnect first if the database file was replaced."""
        with self._lock:
            if self._connection is None or self._opened != identity(self.path):
                self._close()
                self._make_folder()
                self._connection = connected(self.path)
                self._opened = identity(self.path)
            yield self._connection


def _update(connection: sqlite3.Connection, where: str, values_by_column: Mapping[str, Any], *values: object) -> int:
    """Set columns of the unfinished jobs that match the condition ``where``. Return the number of these jobs."""
    places = ", ".join(f"{name} = ?" for name in values_by_column)
    statement = f"UPDATE scenes SET {places} WHERE {where} AND {_UNFINISHED}"
    return connection.execute(statement, (*_as_row(values_by_column).values(), *values)).rowcount


def _as_row(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: msgspec.json.encode(value).decode() if name in _JSON else value for name, value in values.items()}


def _rows(connection: sqlite3.Connection, where: str, *values: object) -> list[dict[str, Any]]:
    """Return the rows of the jobs table that ``where`` selects. JSON columns are not decoded."""
    rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM scenes {where}", values).fetchall()
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]


def _jobs(rows: list[dict[str, Any]]) -> list[SceneJob]:
    return [_job(row) for row in rows]


def _job(values: dict[str, Any]) -> SceneJob:
    values["outputs"] = msgspec.json.decode(values["outputs"], type=tuple[SceneOutput, ...])
    values["error"] = msgspec.json.decode(values["error"], type=SceneError | None)
    values["video"] = msgspec.json.decode(values["video"], type=VideoSettings | None)
    values["delivery"] = msgspec.json.decode(values["delivery"], type=Delivery | None)
    return SceneJob(**values)


def _outputs(row: dict[str, Any]) -> tuple[SceneOutput, ...]:
    """Return the results that a row of the jobs table holds as JSON, or () if the JSON is invalid."""
    try:
        return msgspec.json.decode(row["outputs"], type=tuple[SceneOutput, ...])
    except msgspec.DecodeError:
        return ()
