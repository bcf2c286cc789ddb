"""AudioOutput: a sound."""

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
    """A sound of one channel or several.

    Files are .wav, .flac, .mp3, .opus, .ogg (Vorbis) and .pcm: signed 16 bits, little endian, channels interleaved, no
    header. WAV and FLAC have 16 bits a sample, with ``subtype="PCM_24"`` 24; WAV with ``subtype="FLOAT"`` the samples
    as they are. All others clip samples outside [-1, 1]. Opus, which is of 8000, 12000, 16000, 24000 or 48000 Hz, ends
    with up to 12 ms of silence. All but .pcm need the extra: ``pip install "vllm-mmout[audio]"``.

    Args:
        samples: float32 [channels, n], or [n] of one channel; full scale is [-1, 1].
        rate: samples of a channel in a second, Hz.

    Raises:
        InputError: the samples have another dtype or shape, are empty or not finite, or the rate is no whole number
            above 0.

    """

    output_kinds: ClassVar[tuple[str, ...]] = ("audio",)
    formats: ClassVar[dict[str, str]] = formats_of("audio", first="wav")

    def __init__(self, samples: NDArray[np.float32], rate: int) -> None:
        given = as_numpy(samples)
        shaped = given[np.newaxis] if given.ndim == 1 else given
        if shaped.dtype != np.float32 or shaped.ndim != 2 or shaped.size == 0:
            raise InputError(
                "AudioOutput takes float32 [channels, n] or [n], not empty;"
                f" got {given.dtype} {list(given.shape)}{_remedy(given)}"
            )
        if shaped.shape[0] > MOST_CHANNELS:
            raise InputError(
                f"AudioOutput takes float32 [channels, n] of up to {MOST_CHANNELS} channels;"
                f" got {list(given.shape)}; transpose it where the channels come last"
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
        """Bytes of the samples, from shape and dtype."""
        return self.samples.nbytes

    @property
    def duration(self) -> float:
        """Seconds."""
        return float(self.samples.shape[1] / self.rate)

    def __repr__(self) -> str:
        channels = "1 channel" if self.channels == 1 else f"{self.channels} channels"
        where = f", path={self.path!r}" if self.path else ""
        return f"AudioOutput({self.duration:g} s, {self.rate} Hz, {channels}{where})"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.to_bytes("wav")).decode()
        return f'<audio controls src="data:audio/wav;base64,{data}"></audio>'


def _remedy(given: NDArray[Any]) -> str:
    if given.dtype.kind == "i":
        return f"; divide it by {2 ** (8 * given.dtype.itemsize - 1)} as float32"
    return '; convert it with .astype("float32")' if given.dtype.kind == "f" and given.dtype != np.float32 else ""


def _check_finite(samples: NDArray[np.float32]) -> None:
    wrong = ~np.isfinite(samples)
    if wrong.any():
        channel, place = np.unravel_index(int(wrong.argmax()), samples.shape)
        raise InputError(
            f"{int(wrong.sum())} of {samples.size} samples are NaN or infinite, the first is sample {place} of channel"
            f" {channel}; run the decoder in float32, or replace them with numpy.nan_to_num"
        )
