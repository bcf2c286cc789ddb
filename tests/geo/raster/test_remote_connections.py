"""Connections to servers: none is lost, none is left, and nobody waits for one for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from http_server import a_running_server, a_server, open_sockets  # noqa: F401 - fixtures

from vllm_mmout.geo.raster.remote.connections import Connections
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.geo.raster.remote.http_file import open_remote

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


def test_an_answer_that_is_kept_keeps_no_connection(server):
    """Its pool is closed with the file, not only when nobody has the answer any more, as urllib3 does it."""
    server.quiet()
    before = open_sockets()
    kept = []

    class Keeping(Connections):
        def request(self, url, headers):
            kept.append(super().request(url, headers))
            return kept[-1]

    with open_remote(server.serve("/data", DATA), QUICK, Keeping) as file:
        assert file.read_at(300_000, 10) == DATA[300_000:300_010]
        assert open_sockets() - before
    server.quiet()
    assert not open_sockets() - before


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
