"""A processor of tokens that counts its forwards, for tests of what decodes in batches."""

from __future__ import annotations

import queue
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.engine import batcher as module
from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher
from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout
from vllm_mmout.wings.tokens.processors.base import TokenProcessor

LONG = 60
"""Seconds that nothing here takes."""
ANY = OutputParams()
SQUARE, WIDE = (2, 2), (2, 3)


class Counting(TokenProcessor):
    """Notes its forwards, each of which takes as long by a clock of its own as the test says."""

    name = "counting"
    modality = "image"
    layout = TokenLayout(modality="image", first=100, size=64, row_end=99)

    def __init__(self, cost=lambda count: 0.01, **options):
        super().__init__(**options)
        self.cost = cost
        self.seconds = 0.0
        self.forwards = []
        self.running = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def decode_batch(self, media):
        """The numbers of the media."""
        self.forwards.append([medium.start for medium in media])
        self.running.set()
        assert self.go_on.wait(LONG)
        self.seconds += self.cost(len(media))
        return [self.one(medium) for medium in media]

    def one(self, medium):
        return medium.start

    @property
    def sizes(self):
        """How many media each forward had."""
        return [len(forward) for forward in self.forwards]


def pays(count):
    """One forward costs the same, whatever is in it."""
    return 0.01


def does_not_pay(count):
    """A medium among others costs three times as much."""
    return 0.01 if count == 1 else 0.03 * count


def medium(number, shape=SQUARE):
    return Medium(number, number + 1, (np.zeros(shape, np.int64),), complete=True, grid=shape)


def media(count, shape=SQUARE, start=0):
    return [medium(number, shape) for number in range(start, start + count)]


def submit(batcher, media, into):
    return [batcher.submit(one, ANY, into.put) for one in media]


def settled(done, count):
    """What so many jobs ended with, by the number of their medium; no other job ends."""
    jobs = [done.get(timeout=LONG) for _ in range(count)]
    assert done.empty()
    found = {job.medium.start: job.outcome for job in jobs}
    assert len(found) == count, "a job ended twice"
    return found


def all_at_once(batcher, wanted):
    """Have media decoded that are all ready before the first forward ends."""
    processor, done = batcher._processor, queue.Queue()
    processor.go_on.clear()
    submit(batcher, wanted, done)
    processor.go_on.set()
    return settled(done, len(wanted))


def until(condition, what):
    """Wait for a condition."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.002)


@contextmanager
def batchers(monkeypatch):
    """Gives what makes batchers whose forwards are timed by their processor's clock; they are closed at the end."""
    made = []

    def make(processor, timeout=LONG):
        clock = SimpleNamespace(perf_counter=lambda: processor.seconds, monotonic=time.monotonic)
        monkeypatch.setattr(module, "time", clock)
        made.append(MediaBatcher(processor, timeout))
        return made[-1]

    try:
        yield make
    finally:
        for batcher in made:
            batcher._processor.go_on.set()
            batcher.close()


def tried(make, cost=pays, timeout=LONG, **options):
    """A batcher that knows what forwards of ``SQUARE`` cost; numbers from 1000 on were decoded to learn it."""
    processor = Counting(cost, **options)
    batcher = make(processor, timeout)
    all_at_once(batcher, media(40, start=1000))
    processor.forwards.clear()
    return processor, batcher
