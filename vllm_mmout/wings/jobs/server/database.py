"""SceneDatabase: the jobs of all servers of a folder, in SQLite."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from vllm_mmout.wings.jobs.server.database_file import connected, identity
from vllm_mmout.wings.jobs.server.job import SceneError, SceneJob, SceneOutput, VideoAsked

_COLUMNS: Final = SceneJob.__struct_fields__
_JSON: Final = ("outputs", "error", "video")
"""Columns that are JSON."""
_UNFINISHED: Final = "status IN ('queued', 'in_progress')"
MOST_STARTS: Final = 3
"""How often a job is started: one that ends its servers must not end them all."""
NOBODY: Final = ""
"""The server of a job that was given up and waits for one."""
_WORN_OUT: Final = f"(starts >= {MOST_STARTS})"
_STARTABLE: Final = f"(request IS NOT NULL AND NOT {_WORN_OUT})"
_ANEW: Final = {
    "status": "queued",
    "tiles_done": 0,
    "tiles_total": None,
    "started_at": None,
    "expires_at": None,
    "outputs": (),
    "error": None,
}
"""What is known of a job that has to be run again from its beginning."""


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

    def page(
        self, limit: int, after: str | None, order: Literal["asc", "desc"], kind: str = ""
    ) -> tuple[list[SceneJob], bool] | None:
        """Some jobs after one of these, and whether more follow; None if there is no such one to begin after.

        The ids of all begin with ``kind``.
        """
        sign = ">" if order == "asc" else "<"
        with self._using() as connection:
            found: tuple[int, ...] | None = ()
            if after is not None:
                found = connection.execute("SELECT number FROM scenes WHERE id = ?", (after,)).fetchone()
            if found is None:
                return None
            where = f"WHERE substr(id, 1, ?) = ? {f'AND number {sign} ?' if found else ''}"
            values = (len(kind), kind, *found, limit + 1)
            rows = _rows(connection, f"{where} ORDER BY number {order} LIMIT ?", *values)
        return _jobs(rows[:limit]), len(rows) > limit

    def change(self, job_id: str, *, of: str | None = None, **values: Any) -> bool:
        """Change what is known of a job; False, and nothing is changed, if it is finished or was deleted.

        The same where it is not one ``of`` this server, if that is given: another one has taken it over.
        """
        where, more = ("id = ?", ()) if of is None else ("id = ? AND server = ?", (of,))
        with self._using() as connection:
            return _update(connection, where, values, job_id, *more) > 0

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

    def give_up(self, job_id: str, server: str) -> bool:
        """Leave a job of a server to any other one; False if it cannot be started again."""
        with self._using() as connection:
            where = f"id = ? AND server = ? AND {_STARTABLE}"
            return _update(connection, where, {**_ANEW, "server": NOBODY}, job_id, server) > 0

    def take_over(self, dead: str, server: str, serves: Callable[[str], bool]) -> tuple[list[SceneJob], list[str]]:
        """Let the unfinished jobs of a dead server be another one's, as far as it serves their models.

        Gives the jobs as they are now, and the names in the store that they may have used.
        """
        with self._changing() as connection:
            rows = _rows(connection, f"WHERE server = ? AND {_UNFINISHED} AND {_STARTABLE}", dead)
            taken = [row for row in rows if serves(row["model"])]
            for row in taken:
                _update(connection, "id = ?", {**_ANEW, "server": server}, row["id"])
        used = [name for row in taken for output in _outputs(row) for name in output.files]
        return [_job({**row, **_as_row({**_ANEW, "server": server})}) for row in taken], used

    def fail_all(
        self, server: str, error: SceneError, now: float, expires_at: float, *, worn_out: SceneError | None = None
    ) -> list[str]:
        """Let the unfinished jobs of a server fail; gives the names in the store that they may have used.

        Those that can be started again wait for a server of their model until ``expires_at``, from the first time on.
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
            if self._connection is None or self._opened != identity(self.path):
                self._close()
                self._make_folder()
                self._connection = connected(self.path)
                self._opened = identity(self.path)
            yield self._connection


def _update(connection: sqlite3.Connection, where: str, changed: Mapping[str, Any], *values: object) -> int:
    """Change the unfinished jobs of which a condition holds; gives their number."""
    places = ", ".join(f"{name} = ?" for name in changed)
    statement = f"UPDATE scenes SET {places} WHERE {where} AND {_UNFINISHED}"
    return connection.execute(statement, (*_as_row(changed).values(), *values)).rowcount


def _as_row(values: Mapping[str, Any]) -> dict[str, Any]:
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
    values["video"] = msgspec.json.decode(values["video"], type=VideoAsked | None)
    return SceneJob(**values)


def _outputs(row: dict[str, Any]) -> tuple[SceneOutput, ...]:
    """What a job was storing; nothing where nobody can read it."""
    try:
        return msgspec.json.decode(row["outputs"], type=tuple[SceneOutput, ...])
    except msgspec.DecodeError:
        return ()
