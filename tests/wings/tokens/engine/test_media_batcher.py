"""The batcher of decoders: media that are ready together go in one forward, where that pays."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import numpy as np
import pytest
from counting_decoder import (
    ANY,
    LONG,
    SQUARE,
    WIDE,
    Counting,
    all_at_once,
    batchers,
    does_not_pay,
    media,
    medium,
    pays,
    settled,
    submit,
    tried,
)

from vllm_mmout.wings.tokens.engine import batcher as module
from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher
from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout

pytestmark = pytest.mark.engine


@pytest.fixture
def make(monkeypatch):
    """Makes batchers."""
    with batchers(monkeypatch) as make:
        yield make


@pytest.mark.parametrize("most", [2, 3, 8, 16, 63, 64, 100])
def test_media_that_are_ready_together_take_few_forwards(make, most):
    """64 media take at most 64 / max_batch + 2 forwards where these pay, from the first medium on."""
    processor = Counting(pays, max_batch=most)
    batcher = make(processor)

    assert all_at_once(batcher, media(64)) == {number: number for number in range(64)}
    assert batcher.calls == len(processor.forwards) <= -(-64 // most) + 2
    assert max(processor.sizes) <= most


def test_batches_that_do_not_pay_are_not_made(make):
    """After the first tries all go one by one, but for a look now and then."""
    processor = Counting(does_not_pay, max_batch=8)

    assert len(all_at_once(make(processor), media(200))) == 200
    assert sum(size > 1 for size in processor.sizes) <= 2 + len(processor.sizes) // 64


@pytest.mark.parametrize(("before", "after"), [(does_not_pay, pays), (pays, does_not_pay)])
def test_it_looks_again(make, before, after):
    """When batches begin or cease to pay, the batcher finds out by itself, and changes its ways."""
    processor = Counting(before, max_batch=4)
    batcher = make(processor)
    all_at_once(batcher, media(300))
    processor.cost = after
    all_at_once(batcher, media(800, start=1000))
    processor.forwards.clear()
    all_at_once(batcher, media(200, start=5000))

    together = sum(size for size in processor.sizes if size > 1)
    assert together > 180 if after is pays else together < 20


def test_media_of_different_shapes_never_share_a_forward(make):
    """They go by shape, however they come, the oldest first."""
    processor = Counting(pays, max_batch=4)
    shapes = [(SQUARE, WIDE, (4, 1))[index] for index in np.random.default_rng(3).integers(0, 3, 90)]

    found = all_at_once(make(processor), [medium(number, shape) for number, shape in enumerate(shapes)])

    assert len(found) == 90
    assert max(processor.sizes) == 4
    for forward in processor.forwards:
        assert len({shapes[number] for number in forward}) == 1
        assert forward == sorted(forward)


def test_a_processor_says_what_goes_together(make):
    """``batch_key`` decides, not the shape."""

    class ByParity(Counting):
        def batch_key(self, medium):
            return medium.start % 2

    processor = ByParity(pays, max_batch=4)
    all_at_once(make(processor), [medium(number, (SQUARE, WIDE)[number // 3 % 2]) for number in range(40)])

    assert max(processor.sizes) == 4
    for forward in processor.forwards:
        assert len({number % 2 for number in forward}) == 1


def test_the_first_waits_for_others(make):
    """A medium that comes while another one waits goes with it."""
    processor, batcher = tried(make, max_batch=2, batch_wait_ms=1e6 * LONG, timeout=1000 * LONG)
    done = queue.Queue()
    submit(batcher, media(1), done)
    submit(batcher, media(1, start=1), done)

    assert settled(done, 2) == {0: 0, 1: 1}
    assert processor.forwards == [[0, 1]]


def test_the_wait_of_the_first_is_bounded(make, monkeypatch):
    """Others that come and do not fill the batch do not make it any longer."""
    processor, batcher = tried(make, max_batch=8, batch_wait_ms=100)
    now, waits = [0.0], []
    clock = SimpleNamespace(perf_counter=lambda: processor.seconds, monotonic=lambda: now[0])
    monkeypatch.setattr(module, "time", clock)

    def wait(seconds):
        """Something comes in after 40 ms."""
        waits.append(seconds)
        now[0] += 0.04
        return True

    monkeypatch.setattr(batcher, "_more", SimpleNamespace(wait=wait, notify_all=lambda: None))
    done = queue.Queue()
    submit(batcher, media(1), done)

    assert settled(done, 1) == {0: 0}
    assert waits == pytest.approx([0.1, 0.06, 0.02])


def test_a_wait_leaves_time_for_the_forward(make):
    """A wait that is longer than the limit of a forward is cut short: it costs no request its result."""
    processor, batcher = tried(make, max_batch=8, batch_wait_ms=1e6 * LONG, timeout=1.0)
    done = queue.Queue()
    submit(batcher, media(1), done)

    assert settled(done, 1) == {0: 0}
    assert processor.forwards == [[0]]


def test_no_medium_waits_where_batches_do_not_pay(make):
    """A wait is for batches alone."""
    _, batcher = tried(make, does_not_pay, max_batch=8, batch_wait_ms=1e6 * LONG)
    done = queue.Queue()
    batcher._more = SimpleNamespace(wait=lambda seconds: pytest.fail("it waits"), notify_all=lambda: None)
    submit(batcher, media(1), done)

    assert settled(done, 1) == {0: 0}


def test_pictures_of_a_batch_are_those_that_each_alone_gives():
    """A real decoder: Emu3's, of pictures of two sizes."""
    tiny_decoders = pytest.importorskip("tiny_decoders", reason="decoders need torch", exc_type=ImportError)
    import torch

    from vllm_mmout.wings.tokens import VQImageProcessor

    decoder = tiny_decoders.emu3()
    layout = TokenLayout(modality="image", first=100, size=64, row_end=99)
    processor = VQImageProcessor(layout=layout, decoder=decoder, max_batch=8)
    batcher, done = MediaBatcher(processor, LONG), queue.Queue()
    chance = np.random.default_rng(0)
    wanted = [chance.integers(0, 64, (3, 4) if number % 3 else (2, 2)) for number in range(30)]
    for number, codes in enumerate(wanted):
        batcher.submit(Medium(number, number + 1, (codes,), complete=True, grid=codes.shape), ANY, done.put)
    found = settled(done, 30)
    batcher.close()

    assert batcher.calls < 30
    for number, codes in enumerate(wanted):
        with torch.inference_mode():
            pixels = decoder.decode(torch.from_numpy(codes)[None])[0].permute(1, 2, 0).numpy()
        levels = np.rint((pixels * 0.5 + 0.5) * 255).clip(0, 255)
        assert np.abs(found[number].array.astype(int) - levels).max() <= 1
        assert found[number].span == (number, number + 1)


def test_sounds_of_a_batch_are_those_that_each_alone_gives():
    """A real decoder: Mimi's, of sounds of two lengths."""
    tiny_decoders = pytest.importorskip("tiny_decoders", reason="decoders need torch", exc_type=ImportError)
    import torch

    from vllm_mmout.wings.tokens import CodecAudioProcessor

    decoder = tiny_decoders.mimi()
    layout = TokenLayout(modality="audio", first=100, size=32, codebooks=4, order="interleaved")
    processor = CodecAudioProcessor(layout=layout, decoder=decoder, sampling_rate=tiny_decoders.SAMPLING_RATE)
    batcher, done = MediaBatcher(processor, LONG), queue.Queue()
    chance = np.random.default_rng(0)
    wanted = [chance.integers(0, 32, (4, 6 if number % 3 else 9)) for number in range(30)]
    for number, codes in enumerate(wanted):
        batcher.submit(Medium(number, number + 1, tuple(codes), complete=True), ANY, done.put)
    found = settled(done, 30)
    batcher.close()

    assert batcher.calls < 30
    for number, codes in enumerate(wanted):
        with torch.inference_mode():
            samples = decoder.decode(torch.from_numpy(codes)[None]).audio_values[0, 0].numpy()
        np.testing.assert_allclose(found[number].samples.ravel(), samples, rtol=1e-4, atol=1e-4)
