"""Servers that end though something in them does not: a step that hangs, a process that is killed."""

from __future__ import annotations

import json
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hanging_model import write_folder
from processes import left_of_session
from scene_clients import wait_for
from serving import served

pytestmark = [pytest.mark.engine, pytest.mark.slow]
LIMIT_S = 120


def shared_memory():
    """Return the names of the shared-memory segments."""
    return {path.name for path in Path("/dev/shm").glob("psm_*")}  # noqa: S108 - where Linux has it


def test_a_step_that_hangs_is_seen_from_outside(tmp_path):
    """Waiting requests get 503, `/health` fails, and the log shows where the step hangs."""
    flags = ("--additional-config", json.dumps({"mmout": {"step_timeout_s": 3}}))
    with served(write_folder(tmp_path / "model"), *flags) as server, ThreadPoolExecutor(2) as pool:
        url = f"{server.url}/pooling"
        assert httpx.post(url, json={"data": 5}, timeout=LIMIT_S).json()["data"] == {"output": [5.0]}
        hung, beside = (pool.submit(httpx.post, url, json={"data": data}, timeout=LIMIT_S) for data in (-1, 2))
        assert hung.result().status_code == 503
        assert beside.result().status_code in {200, 503}
        server.process.wait(LIMIT_S)  # vLLM ends a server whose engine is dead
        log = server.log.read_text()
    assert "takes longer than 3 s (step_timeout_s)" in log
    assert "hanging_model.py" in log


def test_nothing_is_left_of_a_server_that_is_killed(tmp_path):
    """Its engine ends by itself, with its shared memory, and the next server removes its temporary folder."""
    before = shared_memory()
    with tempfile.TemporaryDirectory() as temporary:
        for _ in range(2):
            with served(write_folder(tmp_path / "model"), environment={"TMPDIR": temporary}) as server:
                (ours,) = Path(temporary).glob("mmout-results-*")
                server.process.send_signal(signal.SIGKILL)
                server.process.wait(LIMIT_S)
                assert left_of_session(server.pid) == []
                assert ours.exists()
                wait_for(lambda: shared_memory() <= before, "shared memory is left")
