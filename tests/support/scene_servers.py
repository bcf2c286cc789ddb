"""What is seen from outside of servers that have jobs: their processes, and the files of their results."""

from __future__ import annotations

import json
import sqlite3
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import psutil
from scene_clients import client


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
