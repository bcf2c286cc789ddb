"""Servers that are killed while they have jobs, and the servers that follow them on the same folder."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from scene_clients import DEADLINE, UNFINISHED, ask, client, ended, listed, long_scene, made, raster, wait_for
from scene_servers import files_of, files_there_should_be, rows
from scenes_for_tests import classes, pixels, write
from serving import served

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ROUNDS = 20 if os.environ.get("MMOUT_LONG") else 6
FIRST = 3
"""Jobs that are finished, and fetched, before the others are sent."""
SMALL = 24
LATEST_S = 2.0
"""Seconds after the first jobs were sent, at most, until a server is killed."""
FORM_BYTES = 8 << 20
SENT_BYTES = 3 << 20
"""More than is kept in memory of one file."""


@dataclass
class Sent:
    """What clients know of a folder's jobs."""

    inputs: list[tuple[bytes, np.ndarray]]
    """Files, and their classes."""
    which: dict[str, int] = field(default_factory=dict)
    """The input of each job that a server has told of."""
    contents: dict[str, bytes] = field(default_factory=dict)
    """Results that were fetched."""
    dead: dict[str, str] = field(default_factory=dict)
    """How each job of the last server stood when that was killed."""
    met: Counter[str] = field(default_factory=Counter)
    """What killed servers were doing, of all jobs."""

    def make(self, server, number, **options):
        """Make a job of an input."""
        job = made(ask(server, "POST", "/v1/scenes", files={"image": self.inputs[number][0]}, data=options))
        self.which[job["id"]] = number
        return job["id"]


@pytest.fixture
def sent(tmp_path):
    """Small inputs, each of its own size, and a long one at the end."""
    rng, inputs = np.random.default_rng(1), []
    for number in range(SMALL):
        array = pixels(number, *rng.integers(30, 200, 2))
        inputs.append((write(tmp_path / f"{number}.tif", array).read_bytes(), classes(array)))
    return Sent([*inputs, long_scene(tmp_path / "long.tif")])


def test_jobs_of_killed_servers_fail_and_leave_nothing(tmp_path, sent, capsys):
    """SIGKILL, six times at random moments; 20 times where ``MMOUT_LONG`` is set.

    Every other server dies as soon as a result is being stored. By then a large form is half sent, one job takes
    thousands of tiles, others run, wait and are being sent. The next server has to say so of each job, to have all
    results that were finished, and to leave no file that belongs to none.
    """
    rng, results = np.random.default_rng(2), tmp_path / "results"
    flags = ("--mmout-results-dir", str(results), "--mmout-result-ttl", "86400")
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(ROUNDS + 1):
            with served("water-index", *flags, environment={"TMPDIR": temporary}) as server:
                check(server, sent, results)
                assert not [path for path in Path(temporary).rglob("*") if is_ours(path)]
                if number < ROUNDS:
                    kill(server, sent, results, after_s=rng.uniform(0, LATEST_S) if number % 2 == 0 else None)
        with capsys.disabled():  # chance decides what was met
            print(f"\n{ROUNDS} servers killed: {dict(sent.met)}")  # noqa: T201


def kill(server, sent, results, after_s):
    """Give a server work, and kill it after so many seconds, or when a result is being stored."""
    with client(base_url=server.url) as asking:
        first = [sent.make(server, number) for number in range(FIRST)]
        ended(asking, first)
        for job in first:
            sent.contents[job] = asking.get(f"/v1/scenes/{job}/content").content
    known = set(rows(results / "scenes.sqlite"))
    sent.make(server, SMALL, tile=32)
    with half_sent(server), ThreadPoolExecutor(4) as pool:
        for number in range(SMALL):
            pool.submit(make_unless_dead, server, sent, number)
        if after_s is None:
            wait_for_storing(results / "scenes.sqlite")
        else:
            time.sleep(after_s)
        server.kill()
    found = {one: row for one, row in at_death(results).items() if one not in known}
    sent.dead = {one: status for one, (status, _, _) in found.items()}
    storing = [one for one, (status, outputs, _) in found.items() if status == "in_progress" and outputs]
    sent.met.update([*sent.dead.values(), *("being stored" for _ in storing)])
    sent.met["files of work"] += len([name for name in files_of(results) if "/" in name and not name.endswith(".lock")])


def check(server, sent, results):
    """See that a new server says of all jobs what became of them, and has the files of finished ones alone."""
    with client(base_url=server.url) as asking:
        jobs = listed(asking)
        assert set(sent.which) <= set(jobs)
        for one, status in sent.dead.items():
            assert jobs[one]["status"] == ("failed" if status in UNFINISHED else status)
        for job in jobs.values():
            content = asking.get(f"/v1/scenes/{job['id']}/content")
            if job["status"] == "failed":
                check_failed(job, content)
            else:
                assert job["status"] == "completed"
                check_completed(job, content, sent)
    assert {job["status"] for job in jobs.values()} <= {"completed", "failed"}
    wait_for(lambda: len(workplaces(results)) == 1, "what the killed server had is there still")
    assert files_of(results) == files_there_should_be(results) | {f"{workplaces(results)[0]}/.lock"}


def check_failed(job, content):
    """It says why, and so does the answer to who wants its result."""
    assert job["error"]["code"] == "server_ended"
    assert "the server that ran the job stopped" in job["error"]["message"]
    assert job["outputs"] == []
    assert job["created_at"] <= job["completed_at"] < job["expires_at"]
    assert content.status_code == 409
    assert job["error"]["message"] in content.json()["error"]["message"]


def check_completed(job, content, sent):
    """The same bytes as before, if they were fetched; the right pixels in any case."""
    assert content.status_code == 200, content.text
    assert sent.contents.setdefault(job["id"], content.content) == content.content
    if job["id"] in sent.which:  # else its client was not told of it any more
        np.testing.assert_array_equal(raster(content.content), sent.inputs[sent.which[job["id"]]][1])


def make_unless_dead(server, sent, number):
    with suppress(httpx.TransportError):
        sent.make(server, number, tile=64)


def half_sent(server):
    """A connection on which half of a form was sent."""
    url = httpx.URL(server.url)
    connection = socket.create_connection((url.host, url.port), timeout=DEADLINE)
    head = f'--x\r\nContent-Disposition: form-data; name="image"; filename="a.tif"\r\n\r\n{"a" * SENT_BYTES}'
    connection.sendall(
        f"POST /v1/scenes HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {FORM_BYTES}\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\n\r\n{head}".encode()
    )
    return connection


def wait_for_storing(file):
    """Wait until the results of a job that runs are being stored."""
    deadline = time.monotonic() + DEADLINE
    while not any(status in UNFINISHED and outputs for status, outputs, _ in rows(file).values()):
        assert time.monotonic() < deadline, "nothing is stored"


def at_death(results):
    """What a killed server's file of jobs says, looked at in a copy."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("scenes.sqlite", "scenes.sqlite-wal"):
            shutil.copy(results / name, folder)
        return rows(Path(folder, "scenes.sqlite"))


def workplaces(results):
    """The folders of servers."""
    return [path.name for path in results.glob(".server-*")]


def is_ours(path):
    """Whether a temporary file or folder is none of vLLM's or of torch's, which leave sockets and empty folders."""
    return path.name.startswith(("mmout", "tmp")) or path.suffix in {".part", ".tif", ".png"}
