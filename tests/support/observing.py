"""An observer that keeps what it hears, and waiting for what it is to hear."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from scene_ends import DEADLINE

from vllm_mmout.engine.observer import Observer


class Records(Observer):
    """Keeps what it hears."""

    def __init__(self):
        self.lock = threading.Lock()
        self.pending = []
        """Bytes of each pending decode."""
        self.waited = []
        """Bytes of each decode that has been pending."""
        self.decodes = []
        self.tiles = []
        self.failures = Counter()

    def waits(self, nbytes):
        with self.lock:
            self.pending.append(nbytes)
            self.waited.append(nbytes)

    def settled(self, nbytes):
        with self.lock:
            self.pending.remove(nbytes)  # raises for one that never waited

    def decoded(self, processor, seconds):
        with self.lock:
            self.decodes.append((processor, seconds))

    def tile(self, pixels):
        with self.lock:
            self.tiles.append(pixels)

    def failed(self, processor, kind):
        with self.lock:
            self.failures[processor, kind] += 1


async def until(condition, what):
    """Wait for a condition."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.002)
    assert condition(), what


async def answer(engine, data, params=None, request_id=None):
    """The output of one request."""
    return [result async for result in engine.generate(data, params, request_id)][-1].outputs
