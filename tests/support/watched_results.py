"""Results of a server that say when they were closed."""

from __future__ import annotations

import threading

from vllm_mmout.serving.response.result_files import Encoded, own_folder


class Watched(Encoded):
    """A result that says when it was closed."""

    closed: threading.Event

    def close(self) -> None:
        super().close()
        self.closed.set()


def watched(size: int) -> Watched:
    """One in a file of zeros, which takes no disk."""
    path = own_folder() / "result"
    with path.open("wb") as file:
        file.truncate(size)
    entry = Watched(path, "tiff")
    entry.closed = threading.Event()
    return entry
