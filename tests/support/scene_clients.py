"""Clients of ``/v1/scenes`` of running servers, and what is seen of these servers from outside."""

from __future__ import annotations

import json
import sqlite3
import ssl
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import numpy as np
import psutil
from scenes_for_tests import classes, pixels, write

DEADLINE = 600
"""Seconds that no step of these tests takes, on whatever machine."""
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing is encrypted here, and reading all certificates of the machine takes longer than a request."""
UNFINISHED = ("queued", "in_progress")
PALETTE = ((0xD9, 0xCF, 0xB4, 255), (0x00, 0x72, 0xB2, 255))
"""The colours of the embedded model's classes, as its config.json has them, opaque."""


def client(**more):
    """A client with no proxy, and a connection for each server that it asks."""
    return httpx.Client(trust_env=False, verify=_NO_CERTIFICATES, timeout=DEADLINE, **more)


def ask(server, method, path, **more):
    """One request by a connection of its own; the whole address of the server's may be given too."""
    with client(base_url=server.url) as asking:
        return asking.request(method, path, **more)


def made(answer):
    """The job of an answer, or anything else that a server says in JSON."""
    assert answer.status_code == 200, answer.text
    return answer.json()


def raster(content):
    """The pixels of a GeoTIFF, [bands, height, width]."""
    import rasterio

    with rasterio.MemoryFile(content) as file, file.open() as opened:
        return opened.read()


def wait_for(found, what, within_s=DEADLINE):
    """Wait until a function gives something, and give that."""
    deadline = time.monotonic() + within_s
    while not (value := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)
    return value


def listed(asking):
    """All jobs that a client's server knows, page by page, by id."""
    jobs, after = {}, {}
    while True:
        page = made(asking.get("/v1/scenes", params={"limit": 100, **after}))
        jobs |= {job["id"]: job for job in page["data"]}
        if not page["has_more"]:
            return jobs
        after = {"after": page["last_id"]}


def ended(asking, ids):
    """The jobs with these ids, when all of them are finished."""

    def finished():
        known = listed(asking)
        return all(known[one]["status"] not in UNFINISHED for one in ids) and known

    known = wait_for(finished, "jobs did not end")
    return {one: known[one] for one in ids}


def port_of(answer):
    """The port of this machine from which a request came."""
    return answer.extensions["network_stream"].get_extra_info("client_addr")[1]


def api_servers(server):
    """The processes below a server's that listen where it does; itself where it is the only one."""
    port, own = httpx.URL(server.url).port, psutil.Process(server.pid)
    below = [one for one in own.children(recursive=True) if port in _listens(one)]
    return below or [own]


def _listens(process):
    return {found.laddr.port for found in process.net_connections("tcp") if found.status == "LISTEN"}


def answered_by(answer, processes):
    """The one of the processes that has the other end of an answer's connection, which must be open still."""
    port = port_of(answer)
    (pid,) = [
        one.pid
        for one in processes
        if any(found.raddr and found.raddr.port == port for found in one.net_connections("tcp"))
    ]
    return pid


@contextmanager
def client_of_each(server):
    """A client for each API server, which asks that one alone: by one connection that must not end."""
    processes, found = api_servers(server), {}
    with ExitStack() as used:
        while len(found) < len(processes):
            asking = used.enter_context(client(base_url=server.url))
            answer = asking.get("/health")
            pid, port = answered_by(answer, processes), port_of(answer)
            if pid not in found:
                asking.event_hooks = {"response": [lambda later, port=port: _same(later, port)]}
                found[pid] = asking
        yield list(found.values())


def _same(answer, port):
    assert port_of(answer) == port, "the connection was closed meanwhile"


def rows(file):
    """What a file of jobs says of each: ``{id: (status, outputs, error)}``; outputs and error from JSON."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=60)) as connection:
        found = connection.execute("SELECT id, status, outputs, error FROM scenes").fetchall()
    return {one: (status, json.loads(outputs), json.loads(error)) for one, status, outputs, error in found}


def files_of(folder):
    """The files below a folder, from there."""
    return {str(file.relative_to(folder)) for file in Path(folder).rglob("*") if not file.is_dir()}


def files_there_should_be(folder):
    """The files of a results folder in which one server lives: those of its finished jobs, and its lock, alone."""
    stored = {
        output[name]
        for status, outputs, _ in rows(Path(folder, "scenes.sqlite")).values()
        if status == "completed"
        for output in outputs
        for name in ("stored", "preview")
        if output[name] is not None
    }
    return stored | {".lock", "scenes.sqlite", "scenes.sqlite-wal", "scenes.sqlite-shm"}


def long_scene(path):
    """Write a scene of 2000 x 2000 pixels, which takes 3969 tiles of 32; gives the file's bytes and its classes."""
    from rasterio import Affine

    array = np.tile(pixels(3, 50, 50), (1, 40, 40))
    write(
        path,
        array,
        tiled=True,
        compress="deflate",
        crs="EPSG:32614",
        transform=Affine(30, 0, 500_000, 0, -30, 3_000_000),
    )
    return path.read_bytes(), classes(array)
