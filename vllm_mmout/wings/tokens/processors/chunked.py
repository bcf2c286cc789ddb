"""How the decoder of a processor decodes sounds in chunks: as its layers remember, or with the frames around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import DecodeError, OptionError
from vllm_mmout.processors.raw import describe
from vllm_mmout.wings.tokens.decoders.base import decoder_threads
from vllm_mmout.wings.tokens.decoders.chunks import Chunking, Context, Probe, WindowedChunks

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.wings.tokens.decoders.base import TokenDecoder
    from vllm_mmout.wings.tokens.decoders.chunks import Codes, SoundChunks
    from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """What has come of a sound."""

    medium: Medium
    ended: bool
    """Whether nothing of it follows."""


@contextmanager
def decoding(threads: int | None) -> Iterator[None]:
    """Run a decoder."""
    import torch

    with torch.inference_mode(), decoder_threads(threads):
        yield


def chunking_of(decoder: TokenDecoder, layout: TokenLayout, given: Context | None) -> Chunking:
    """How a loaded decoder decodes sounds of a layout in chunks; runs it.

    Args:
        decoder: the decoder.
        layout: of the sounds.
        given: what its samples depend on, None: is measured.

    Raises:
        OptionError: it cannot.

    """
    slots = [slot.codebook for slot in layout.slots]
    rates = [slots.count(book) for book in range(layout.codebooks)]
    size = min(slot.stop - slot.first for slot in layout.slots)
    unit = decoder.unit(rates)

    def decode(codes: Codes) -> NDArray[np.float32]:
        return _samples(decoder, codes)

    def always_alike(codes: Codes) -> NDArray[np.float32]:
        """Of a decoder that mixes in noise, always with the same."""
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(0)
            return decode(codes)

    probe = Probe(always_alike, rates, size, unit)
    frame_samples, beyond = probe.lengths()
    causal = decoder.causal()
    if causal is not None and given is None and not beyond and set(rates) == {1}:
        return Chunking(frame_samples, 0, causal.first, lambda: decoder.causal() or causal, rates)
    context = probe.context(frame_samples) if given is None else given
    if beyond < 0:  # the last frames lack samples, which they have when more follow
        context = Context(context.left, max(context.right, -(beyond // frame_samples)))

    def begin() -> SoundChunks:
        return WindowedChunks(decode, rates, frame_samples, context, unit)

    return Chunking(frame_samples, context.right, 1, begin, rates)


def checked_context(value: object) -> Context:
    """An option ``context``."""
    numbers = list(value) if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in numbers):
        raise OptionError(
            f"context must be two integers of 0 or more, frames before and after one, got {value!r}", param="context"
        )
    return Context(*numbers)


def _samples(decoder: TokenDecoder, codes: Codes) -> NDArray[np.float32]:
    """Samples [channels, n] of one sound."""
    import torch

    made: torch.Tensor = decoder.decode([torch.from_numpy(ids[np.newaxis]).to(decoder.device) for ids in codes])
    if made.ndim == 2:
        made = made.unsqueeze(1)
    if made.ndim != 3 or made.shape[0] != 1 or not made.is_floating_point():
        raise DecodeError(
            f"the decoder must make floating-point samples [1, channels, samples] or [1, samples], got {describe(made)}"
        )
    samples: NDArray[np.float32] = made[0].float().cpu().numpy()
    return samples
