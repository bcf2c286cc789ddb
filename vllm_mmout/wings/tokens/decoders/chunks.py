"""Decode a sound in chunks while it is generated, and measure how much context a decoder needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError

Codes: TypeAlias = Sequence[NDArray[np.int64]]
"""Codes of a sound: an int64 array [number of codes] for each codebook."""
Decode: TypeAlias = Callable[[Codes], NDArray[np.float32]]
"""Function that decodes codes to float32 samples [channels, samples]."""

_TEST_FRAMES = (64, 256, 1024)
"""Lengths, in frames, of the random test sounds that `Probe.context` decodes.

A longer sound is decoded only if a shorter sound does not show the whole effect of a changed frame."""
_MIN_TEST_FRAMES = 16
"""Minimum length, in frames, of the random test sounds that `Probe.lengths` decodes."""
_TEST_SOUNDS = 3
"""Number of random test sounds of each length. A single sound is not enough: changing a frame of the sound may, by
chance, change none of the samples."""


class SoundChunks(ABC):
    """Decoder of a single sound in chunks. It keeps its state between the chunks."""

    @abstractmethod
    def take(self, codes: Codes, *, ended: bool) -> NDArray[np.float32] | None:
        """Decode the codes that are new since the last call. ``codes`` holds all codes of the sound so far.

        Args:
            codes: all codes of the sound so far, whole frames only.
            ended: whether the sound has no more codes.

        Returns:
            Samples [channels, n] that follow those of the last call, or None if more codes must come first. The
            samples of all calls, joined, equal those of decoding the whole sound at once, up to rounding.

        """


@dataclass(frozen=True, slots=True)
class Chunking:
    """Parameters that a decoder needs to decode sounds in chunks."""

    frame_samples: int
    """Number of audio samples per channel that each frame of codes adds to the sound."""
    ahead: int
    """Number of later frames that the decoder needs in order to decode a frame."""
    first: int
    """Minimum number of frames in the first chunk of a sound. Only a sound with fewer frames has a shorter first
    chunk."""
    begin: Callable[[], SoundChunks]
    """Function that returns a chunk decoder for a new sound."""
    rates: Sequence[int] = (1,)
    """Number of codes per frame in each codebook."""


@dataclass(frozen=True, slots=True)
class Context:
    """Number of frames before (``left``) and after (``right``) a frame that affect its samples."""

    left: int
    right: int


class WindowedChunks(SoundChunks):
    """Chunked decoding for decoders that compute a frame's samples from only a few neighbouring frames.

    Each chunk is decoded with the frames around it, whose samples are then cut off. A window must begin at a multiple
    of ``unit`` frames.
    """

    def __init__(self, decode: Decode, rates: Sequence[int], frame_samples: int, context: Context, unit: int) -> None:
        self._decode = decode
        self._rates = rates
        self._frame_samples = frame_samples
        self._context = context
        self._unit = unit
        self._made = 0
        """Number of frames whose samples have been returned."""

    def take(self, codes: Codes, *, ended: bool) -> NDArray[np.float32] | None:
        """Decode the codes that are new since the last call. ``codes`` holds all codes of the sound so far."""
        frames = codes[0].size // self._rates[0]
        until = frames if ended else frames - self._context.right
        if until <= self._made and not ended:
            return None
        # The last call decodes at least one frame, as some decoders make samples after the last frame.
        start = max(0, min(self._made - self._context.left, frames - 1)) // self._unit * self._unit
        window = [ids[start * rate : frames * rate] for ids, rate in zip(codes, self._rates, strict=True)]
        samples = self._decode(window)
        first = (self._made - start) * self._frame_samples
        last = (
            samples.shape[1] if ended else (until - start) * self._frame_samples
        )  # the last frame may have more or fewer samples
        self._made = until
        return samples[:, first:last]


@dataclass(frozen=True, slots=True)
class Probe:
    """Measurement of a sound decoder with test sounds: samples per frame, and how many frames affect a sample."""

    decode: Decode
    """Function that decodes codes. It must be deterministic."""
    rates: Sequence[int]
    """Number of codes per frame in each codebook."""
    size: int
    """Number of codes in the smallest codebook."""
    unit: int
    """Number of frames that must be decoded together. Each test sound has a multiple of ``unit`` frames."""

    def lengths(self) -> tuple[int, int]:
        """Return (a, b), which give the length of decoded sounds: n frames make a * n + b samples.

        Raises:
            OptionError: the number of samples does not grow evenly with the frames.

        """
        few = -(-_MIN_TEST_FRAMES // self.unit) * self.unit
        lengths = [self.decode(self._random(few * times)).shape[1] for times in (1, 2, 3)]
        added, rest = divmod(lengths[1] - lengths[0], few)
        if rest or added < 1 or lengths[2] - lengths[1] != lengths[1] - lengths[0]:
            raise OptionError(
                f"the decoder makes {lengths} samples of {few}, {2 * few} and {3 * few} frames, so the number"
                " per frame is not constant; leave chunk_seconds out",
                param="chunk_seconds",
            )
        return added, lengths[0] - few * added

    def context(self, frame_samples: int) -> Context:
        """Measure how many frames before and after a frame affect the frame's samples.

        For this, random sounds are decoded with and without a change of the codes of one frame.

        Raises:
            OptionError: samples depend on frames that are too far away.

        """
        half = 0
        for frames in _TEST_FRAMES:
            half = -(-frames // (2 * self.unit)) * self.unit
            places = {half, half + self.unit - 1}
            contexts = [
                self._context_at(frame_samples, 2 * half, at, trial) for trial in range(_TEST_SOUNDS) for at in places
            ]
            left, right = max(context.left for context in contexts), max(context.right for context in contexts)
            if max(left, right) + 2 * self.unit < half:
                return Context(left and left + 1, right and right + 1)  # one more: rounding hides the faintest effects
        raise OptionError(
            f"the decoder's samples depend on codes that are {half} frames away or more, so it cannot decode in"
            " chunks; leave chunk_seconds out",
            param="chunk_seconds",
        )

    def _context_at(self, frame_samples: int, frames: int, frame: int, seed: int) -> Context:
        """Measure in one test sound how many frames before and after a frame affect the frame's samples.

        The codes of the frame with the index ``frame`` are changed. If samples of later frames change, these frames
        need left context. If samples of earlier frames change, these frames need right context. The sound is random:
        ``frames`` is its length, and ``seed`` is its random seed.
        """
        codes = self._random(frames, seed)
        changed = [ids.copy() for ids in codes]
        for ids, rate in zip(changed, self.rates, strict=True):
            ids[frame * rate : (frame + 1) * rate] = (
                ids[frame * rate : (frame + 1) * rate] + self.size // 2
            ) % self.size
        different = np.flatnonzero((self.decode(codes) != self.decode(changed)).any(axis=0))
        if not different.size:
            return Context(0, 0)
        first, last = int(different[0]), int(different[-1])
        return Context(max(0, last // frame_samples - frame), max(0, frame - first // frame_samples))

    def _random(self, frames: int, seed: int = 0) -> list[NDArray[np.int64]]:
        random = np.random.default_rng(seed)
        return [random.integers(0, self.size, frames * rate) for rate in self.rates]
