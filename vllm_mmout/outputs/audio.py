"""AudioOutput, the output of models that generate sound."""

from __future__ import annotations

import base64
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.outputs.base import MediaOutput, as_numpy
from vllm_mmout.outputs.formats import formats_of
from vllm_mmout.outputs.formats.sounds import MOST_CHANNELS


class AudioOutput(MediaOutput):
    """Sound that a model generated, as float32 samples in one or several channels.

    File formats are .wav, .flac, .mp3, .opus, .ogg (Vorbis) and .pcm (signed 16-bit samples, little endian, channels
    interleaved, no header). WAV and FLAC have 16 bits per sample, or 24 with ``subtype="PCM_24"``. WAV with
    ``subtype="FLOAT"`` stores the samples unchanged. All other formats clip samples outside [-1, 1]. Opus supports only
    8000, 12000, 16000, 24000 and 48000 Hz, and its files end with up to 12 ms of silence. All formats except .pcm need
    ``pip install "vllm-mmout[audio]"``.

    Args:
        samples: float32 [channels, n], or [n] for a single channel. Full scale is [-1, 1].
        rate: sample rate in Hz.

    Raises:
        InputError: the samples have a wrong dtype or shape, are empty or not finite, or the rate is not an integer
            above 0.

    """

    output_kinds: ClassVar[tuple[str, ...]] = ("audio",)
    formats: ClassVar[dict[str, str]] = formats_of("audio", first="wav")

    def __init__(self, samples: NDArray[np.float32], rate: int) -> None:
        array = as_numpy(samples)
        shaped = array[np.newaxis] if array.ndim == 1 else array
        if shaped.dtype != np.float32 or shaped.ndim != 2 or shaped.size == 0:
            raise InputError(
                "AudioOutput takes float32 [channels, n] or [n], not empty;"
                f" got {array.dtype} {list(array.shape)}{_remedy(array)}"
            )
        if shaped.shape[0] > MOST_CHANNELS:
            raise InputError(
                f"AudioOutput takes float32 [channels, n] of up to {MOST_CHANNELS} channels;"
                f" got {list(array.shape)}; transpose it if the channels come last"
            )
        _check_finite(shaped)
        if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or rate < 1:
            raise InputError(f"rate must be a whole number of Hz above 0, got {rate!r}")
        self.samples: NDArray[np.float32] = shaped
        self.rate = int(rate)
        self.path = None

    @property
    def channels(self) -> int:
        """Number of channels."""
        return int(self.samples.shape[0])

    @property
    def nbytes(self) -> int:
        """Size of the samples in memory, in bytes."""
        return self.samples.nbytes

    @property
    def duration(self) -> float:
        """Duration in seconds."""
        return float(self.samples.shape[1] / self.rate)

    def __repr__(self) -> str:
        channels = "1 channel" if self.channels == 1 else f"{self.channels} channels"
        where = f", path={self.path!r}" if self.path else ""
        return f"AudioOutput({self.duration:g} s, {self.rate} Hz, {channels}{where})"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.to_bytes("wav")).decode()
        return f'<audio controls src="data:audio/wav;base64,{data}"></audio>'


def _remedy(array: NDArray[Any]) -> str:
    if array.dtype.kind == "i":
        return f"; divide it by {2 ** (8 * array.dtype.itemsize - 1)} as float32"
    return '; convert it with .astype("float32")' if array.dtype.kind == "f" and array.dtype != np.float32 else ""


def _check_finite(samples: NDArray[np.float32]) -> None:
    wrong = ~np.isfinite(samples)
    if wrong.any():
        channel, index = np.unravel_index(int(wrong.argmax()), samples.shape)
        raise InputError(
            f"{int(wrong.sum())} of {samples.size} samples are NaN or infinite, the first is sample {index} of channel"
            f" {channel}; run the decoder in float32, or replace them with numpy.nan_to_num"
        )
