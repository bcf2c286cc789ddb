"""Output processor for speech from a model that computes it in one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from vllm_mmout.errors import DecodeError
from vllm_mmout.outputs import AudioOutput
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.option_values import checked_count
from vllm_mmout.processors.raw import named, own_array

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw


class WaveformProcessor(OutputProcessor):
    """Output processor for sounds, built from the samples in the model's output ``waveform``.

    Args:
        sampling_rate: sampling rate in Hz; by default that of config.json.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "text-to-waveform"
    modality: ClassVar[str] = "audio"

    def __init__(self, *, sampling_rate: int | None = None) -> None:
        self.sampling_rate = None if sampling_rate is None else checked_count("sampling_rate", sampling_rate)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create the processor from ``config.json`` and the options."""
        processor = cls(**options)
        if processor.sampling_rate is None:
            rate = config.get("sampling_rate") or (config.get("vocoder_config") or {}).get("sampling_rate")
            processor.sampling_rate = int(rate) if rate else None
        return processor

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> AudioOutput:
        """Build an `AudioOutput`. Raise DecodeError if the sampling rate is unknown or a sample is not finite."""
        tensors = named(raw)
        samples = own_array(tensors.get("waveform", next(iter(tensors.values())))).reshape(-1)
        if "sequence_lengths" in tensors:
            samples = samples[: int(tensors["sequence_lengths"])]
        if self.sampling_rate is None:
            raise DecodeError("config.json has no sampling_rate; set the option sampling_rate, in Hz")
        if not samples.size or not np.isfinite(samples).all():
            raise DecodeError("the model gave no finite samples; check the text, or run the model in float32")
        return AudioOutput(samples[np.newaxis].astype(np.float32), self.sampling_rate)
