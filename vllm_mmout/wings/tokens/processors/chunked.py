"""Decide how a decoder decodes sounds in chunks: with saved state, or with extra frames around each chunk."""

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
    """Codes of a sound from its beginning up to the end of its latest chunk."""

    medium: Medium
    ended: bool
    """Whether the sound is complete, so that no codes will follow."""


@contextmanager
def decoding(threads: int | None) -> Iterator[None]:
    """Set torch to inference mode and to ``threads`` CPU threads inside a ``with`` block."""
    import torch

    with torch.inference_mode(), decoder_threads(threads):
        yield


def chunking_of(decoder: TokenDecoder, layout: TokenLayout, fixed_context: Context | None) -> Chunking:
    """Run the decoder on test codes to determine the parameters for decoding sounds in chunks.

    Args:
        decoder: the decoder, with its weights loaded.
        layout: layout of the sounds.
        fixed_context: frames around a frame that affect its samples. None to measure them.

    Raises:
        OptionError: the decoder cannot decode in chunks.

    """
    slots = [slot.codebook for slot in layout.slots]
    rates = [slots.count(book) for book in range(layout.codebooks)]
    size = min(slot.stop - slot.first for slot in layout.slots)
    unit = decoder.unit(rates)

    def decode(codes: Codes) -> NDArray[np.float32]:
        return _samples(decoder, codes)

    def decode_seeded(codes: Codes) -> NDArray[np.float32]:
        """Decode with a fixed random seed, so that a decoder that adds noise always adds the same noise."""
        import torch

        with torch.random.fork_rng():
            torch.manual_seed(0)
            return decode(codes)

    probe = Probe(decode_seeded, rates, size, unit)
    frame_samples, beyond = probe.lengths()
    causal = decoder.causal()
    if causal is not None and fixed_context is None and not beyond and set(rates) == {1}:
        return Chunking(frame_samples, 0, causal.first, lambda: decoder.causal() or causal, rates)
    context = probe.context(frame_samples) if fixed_context is None else fixed_context
    if beyond < 0:  # the last frames get all their samples only if more frames follow
        context = Context(context.left, max(context.right, -(beyond // frame_samples)))

    def begin() -> SoundChunks:
        return WindowedChunks(decode, rates, frame_samples, context, unit)

    return Chunking(frame_samples, context.right, 1, begin, rates)


def checked_context(value: object) -> Context:
    """Check the option ``context``, a pair (frames before, frames after). Return the pair as a `Context`.

    These are the numbers of frames before and after a frame that affect the frame's samples. Raise OptionError if
    ``value`` is not such a pair.
    """
    numbers = list(value) if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or any(
        isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in numbers
    ):
        raise OptionError(
            f"context must be two integers of 0 or more, frames before and after a frame, got {value!r}",
            param="context",
        )
    return Context(*numbers)


def _samples(decoder: TokenDecoder, codes: Codes) -> NDArray[np.float32]:
    """Decode the codes of one sound to samples, float32 [channels, n]."""
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
