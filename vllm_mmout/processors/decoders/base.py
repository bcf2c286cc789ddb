"""TokenDecoder: what all decoders have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from vllm_mmout.processors.decoders.facts import DecoderFacts


class TokenDecoder(ABC):
    """A decoder that was found and whose config.json was read; its weights come with ``load``."""

    kind: ClassVar[str]
    """What it is called in messages."""

    facts: DecoderFacts | None = None
    """What it takes; None: not known, so that nothing can be checked."""

    sampling_rate: int | None = None
    """Samples of a channel in a second, Hz, where it says so without further facts."""

    @abstractmethod
    def load(self, device: str | None, dtype: str | None) -> None:
        """Load the weights.

        Args:
            device: where to; None: the CPU, or where a module that was handed in lies.
            dtype: of the weights; None: float32, or that of a module that was handed in.

        Raises:
            ModelError: the weights are damaged, or not all there.

        """

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the codes must lie; known once the weights are loaded."""

    @abstractmethod
    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode codes of several media of one shape.

        Args:
            codes: int64, one a codebook: [n, rows, columns] of pictures, [n, codes] of sounds.

        Returns:
            Floating point: [n, channels, height, width], [n, channels, samples] or [n, samples].

        """
