"""A server of a few routes in a thread, without an engine: answers over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


@contextmanager
def sending(app: object) -> Iterator[str]:
    """Serve an app; gives its address, and ends it."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
    started = threading.Event()
    original = server.startup

    async def startup(sockets: list[socket.socket] | None = None) -> None:
        await original(sockets)
        started.set()

    server.startup = startup
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        assert started.wait(120)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(120)
        listening.close()
        assert not thread.is_alive()
