"""Connections to servers: none is lost, none is left, and nobody waits for one for ever."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from http_server import a_running_server, a_server, open_sockets  # noqa: F401 - fixtures
from urllib3.exceptions import ClosedPoolError

from vllm_mmout.raster.remote import connections
from vllm_mmout.raster.remote.connections import Connections
from vllm_mmout.raster.remote.fetch_options import FetchOptions
from vllm_mmout.raster.remote.opened import open_remote

QUICK = FetchOptions(timeout=10, retries=2, backoff=0.01)
DATA = np.random.default_rng(1).bytes(700_001)


def test_a_server_that_is_busy_again_and_again(server):
    """Answers that are not read whole do not use up the connections: however many, the file is read."""
    address = server.answer("/data", lambda a: a.give(503, DATA) if 1 < a.number < 14 else a.file(DATA))
    with open_remote(address, FetchOptions(timeout=10, retries=12, backoff=0)) as file, ThreadPoolExecutor(1) as pool:
        try:
            assert pool.submit(file.read_at, 300_000, 10).result(30) == DATA[300_000:300_010]
        finally:
            file.close()  # else the pool would wait for ever
    assert len(server.asked) == 14


def test_closing_ends_threads_that_wait_for_a_connection(server, monkeypatch):
    """All of them, though those that have the connections give none back."""
    waiting = threading.Semaphore(0)

    class Watched(queue.LifoQueue):
        def get(self, *, block, **options):
            if block and self.empty():
                waiting.release()
            return super().get(block=block, **options)

    monkeypatch.setattr(connections._Pool, "QueueCls", Watched)
    address = server.serve("/data", DATA)
    opened = Connections(QUICK)
    held = [opened.request(address, {}) for _ in range(8)]
    more = [Future(), Future()]
    for answer in more:
        threading.Thread(target=_settle, args=(answer, opened.request, address, {}), daemon=True).start()
        assert waiting.acquire(timeout=30)
    opened.close()
    for answer in more:
        with pytest.raises(ClosedPoolError):
            answer.result(30)
    for answer in held:
        answer.close()


def _settle(done, function, *args):
    """Call a function in a thread that need not end."""
    try:
        done.set_result(function(*args))
    except ClosedPoolError as error:
        done.set_exception(error)


def test_a_connection_made_while_the_file_is_closed(server):
    """Is closed as well, once its answer is there."""
    server.quiet()
    before = open_sockets()
    fetched = []

    class Late(Connections):
        def request(self, url, headers):
            if fetched:
                fetched[0].close()  # as another thread may, between the check and the request
            return super().request(url, headers)

    with open_remote(server.serve("/data", DATA), QUICK, Late) as file:
        fetched.append(file)
        assert file.read_at(300_000, 10) == DATA[300_000:300_010]
        server.quiet()  # its end of a connection is closed by a thread of its own
        assert not open_sockets() - before
