"""Chunks of several sounds of one answer come one sound after the other, in whatever order they are decoded."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from vllm_mmout import AudioOutput, OutputParams
from vllm_mmout.wings.tokens.engine.growing_sounds import GrowingSounds
from vllm_mmout.wings.tokens.layouts import Medium

pytestmark = pytest.mark.engine


class Jobs(list):
    """Stands for the batcher: the test says when a piece is decoded, and to what."""

    def submit(self, piece, params, done, state):
        job = SimpleNamespace(medium=piece, outcome=None, done=done, cancel=lambda: None)
        self.append(job)
        return job

    def decode(self, index, value):
        """End a job with a chunk of one sample."""
        self[index].outcome = [AudioOutput(np.full((1, 1), value, np.float32), 800)]
        self[index].done(self[index])


def medium(start, *, complete):
    """A sound of two frames."""
    return Medium(start, start + 2, (np.zeros(2, int),), complete=complete)


def test_a_sound_waits_for_the_one_before_it():
    """The rest of the first sound is decoded last, and is given before the second sound."""
    chunking = SimpleNamespace(frame_samples=1, first=1, ahead=0, rates=(1,), begin=lambda: None)
    processor = SimpleNamespace(chunking=lambda: chunking, sampling_rate=800)
    jobs, ended = Jobs(), []
    sounds = GrowingSounds(processor, OutputParams(chunk_seconds=1 / 800), jobs, lambda: ended.append(1))

    def advance(start):
        sounds.advance(SimpleNamespace(begun=(start, 1), so_far=lambda: medium(start, complete=False)))

    advance(0)
    first = sounds.end(medium(0, complete=True))
    advance(9)
    jobs.decode(0, 0.1)
    jobs.decode(1, 0.3)
    assert [chunk.samples.item() for chunk in sounds.take()] == pytest.approx([0.1])
    jobs.decode(2, 0.2)
    assert [chunk.samples.item() for chunk in sounds.take()] == pytest.approx([0.2, 0.3])
    assert first.done is None
    assert ended == [1]
