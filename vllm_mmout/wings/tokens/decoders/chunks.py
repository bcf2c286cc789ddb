"""SoundChunks: one sound that is decoded piece by piece while its codes come, and how far a decoder hears around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import OptionError

Codes: TypeAlias = Sequence[NDArray[np.int64]]
"""One array [n_k] a codebook."""
Decode: TypeAlias = Callable[[Codes], NDArray[np.float32]]
"""Makes samples [channels, n] of codes."""

_TRIED = (64, 256, 1024)
"""Frames by which a decoder is measured: the longer ones where it hears all of the shorter."""
_FEW = 16
"""Frames by whose samples a frame's are counted."""
_TRIALS = 3
"""Random sounds of each length: in one a change may be lost by chance."""


class SoundChunks(ABC):
    """What is remembered between the chunks of one sound."""

    @abstractmethod
    def take(self, codes: Codes, *, ended: bool) -> NDArray[np.float32] | None:
        """Decode what is new.

        Args:
            codes: all codes of the sound so far, whole frames.
            ended: whether the sound has no more.

        Returns:
            Samples [channels, n] that follow those of the call before; None where more codes must come first. All
            samples of a sound, joined, are those of its decode as a whole, up to the rounding of the decoder's sums.

        """


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a decoder decodes sounds in chunks."""

    frame_samples: int
    """Samples of a channel that a frame adds."""
    ahead: int
    """Frames that must have come after one before it can be decoded."""
    first: int
    """Frames that the first chunk takes at least, unless the sound has fewer."""
    begin: Callable[[], SoundChunks]
    """Begins a sound."""
    rates: Sequence[int] = (1,)
    """Codes of a frame, one number a codebook."""


@dataclass(frozen=True, slots=True)
class Context:
    """Frames on either side of one that its samples depend on."""

    left: int
    right: int


class WindowedChunks(SoundChunks):
    """Chunks of a decoder that hears a limited time: each is decoded with the frames around it, which are cut off.

    ``unit``: frames that a window begins at a multiple of.
    """

    def __init__(self, decode: Decode, rates: Sequence[int], frame_samples: int, context: Context, unit: int) -> None:
        self._decode = decode
        self._rates = rates
        self._frame_samples = frame_samples
        self._context = context
        self._unit = unit
        self._made = 0
        """Frames whose samples were given."""

    def take(self, codes: Codes, *, ended: bool) -> NDArray[np.float32] | None:
        """See `SoundChunks.take`."""
        frames = codes[0].size // self._rates[0]
        until = frames if ended else frames - self._context.right
        if until <= self._made and not ended:
            return None
        # What the last call decodes has one frame at least: some decoders make samples behind the last one.
        start = max(0, min(self._made - self._context.left, frames - 1)) // self._unit * self._unit
        window = [ids[start * rate : frames * rate] for ids, rate in zip(codes, self._rates, strict=True)]
        samples = self._decode(window)
        first = (self._made - start) * self._frame_samples
        last = samples.shape[1] if ended else (until - start) * self._frame_samples  # the end may have more, or less
        self._made = until
        return samples[:, first:last]


@dataclass(frozen=True, slots=True)
class Probe:
    """Finds out by trying how a decoder makes samples of frames."""

    decode: Decode
    """The same codes must give the same samples."""
    rates: Sequence[int]
    """Codes of a frame, one number a codebook."""
    size: int
    """Codes that each codebook has at least."""
    unit: int
    """Frames that are decoded together."""

    def lengths(self) -> tuple[int, int]:
        """Samples that a frame adds, and those that a sound has beyond them, which may be less than none.

        Raises:
            OptionError: lengths do not grow evenly.

        """
        few = -(-_FEW // self.unit) * self.unit
        lengths = [self.decode(self._random(few * times)).shape[1] for times in (1, 2, 3)]
        added, rest = divmod(lengths[1] - lengths[0], few)
        if rest or added < 1 or lengths[2] - lengths[1] != lengths[1] - lengths[0]:
            raise OptionError(
                f"the decoder makes {lengths} samples of {few}, {2 * few} and {3 * few} frames, so that no frame has"
                " samples of its own; leave chunk_seconds out",
                param="chunk_seconds",
            )
        return added, lengths[0] - few * added

    def context(self, frame_samples: int) -> Context:
        """How many frames around one its samples depend on: one is changed, to see which samples change.

        Raises:
            OptionError: samples depend on the whole sound.

        """
        half = 0
        for frames in _TRIED:
            half = -(-frames // (2 * self.unit)) * self.unit
            places = {half, half + self.unit - 1}
            found = [self._heard(frame_samples, 2 * half, at, trial) for trial in range(_TRIALS) for at in places]
            left, right = max(one.left for one in found), max(one.right for one in found)
            if max(left, right) + 2 * self.unit < half:
                return Context(left and left + 1, right and right + 1)  # the faintest is lost in rounding
        raise OptionError(
            f"the decoder's samples depend on codes that are {half} frames away or more, so that it makes no sound in"
            " chunks; leave chunk_seconds out",
            param="chunk_seconds",
        )

    def _heard(self, frame_samples: int, frames: int, at: int, trial: int) -> Context:
        """How far the change of a frame is heard: what it does to later ones is their left context."""
        codes = self._random(frames, trial)
        changed = [ids.copy() for ids in codes]
        for ids, rate in zip(changed, self.rates, strict=True):
            ids[at * rate : (at + 1) * rate] = (ids[at * rate : (at + 1) * rate] + self.size // 2) % self.size
        different = np.flatnonzero((self.decode(codes) != self.decode(changed)).any(axis=0))
        if not different.size:
            return Context(0, 0)
        first, last = int(different[0]), int(different[-1])
        return Context(max(0, last // frame_samples - at), max(0, at - first // frame_samples))

    def _random(self, frames: int, seed: int = 0) -> list[NDArray[np.int64]]:
        random = np.random.default_rng(seed)
        return [random.integers(0, self.size, frames * rate) for rate in self.rates]
