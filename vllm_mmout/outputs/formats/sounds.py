"""Encoding sounds: raw samples with NumPy, files with soundfile (libsndfile)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from vllm_mmout.outputs.audio import AudioOutput
    from vllm_mmout.outputs.formats import Format

MOST_CHANNELS = 1024
"""Channels that libsndfile holds in any format."""
_BLOCK = 1 << 14
"""Frames that are written at once: libvorbis puts what it gets on the stack (xiph/vorbis issue 99)."""
_BITS = {"PCM_16": 16, "PCM_24": 24}
"""Subtypes of whole numbers; all others take float32."""


@dataclass(frozen=True, slots=True)
class _Limits:
    container: str
    """libsndfile's name of it."""
    subtypes: tuple[str, ...]
    """libsndfile's names of the codings of a sample, the usual one first."""
    channels: int
    """The most that it holds."""
    rates: Sequence[int]
    """Hz."""

    @property
    def said(self) -> str:
        """The rates in words."""
        whole = isinstance(self.rates, range)
        return f"{self.rates[0]} to {self.rates[-1]}" if whole else ", ".join(map(str, self.rates))


_LIMITS = {
    "wav": _Limits("WAV", ("PCM_16", "PCM_24", "FLOAT"), MOST_CHANNELS, range(1, 2**31)),
    # RFC 9639, 9.1: 20 bits of a rate, 3 of a number of channels; libFLAC takes no rate above 655350.
    "flac": _Limits("FLAC", ("PCM_16", "PCM_24"), 8, range(1, 655351)),
    "mp3": _Limits("MP3", ("MPEG_LAYER_III",), 2, (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)),
    # More than two channels are loudspeakers to Opus and Vorbis: the fourth or sixth may be one for bass alone.
    "opus": _Limits("OGG", ("OPUS",), 2, (8000, 12000, 16000, 24000, 48000)),
    # libvorbis has settings for these rates, and may end the process at others (python-soundfile issue 187).
    "ogg": _Limits("OGG", ("VORBIS",), 2, range(8000, 192001)),
}


def write(output: AudioOutput, file: BinaryIO, form: Format, subtype: str | None = None) -> None:
    """Write a sound file; what is outside [-1, 1] is clipped, but in ``FLOAT``.

    Opus gets up to 12 ms of silence at its end, see `_silence`. ``subtype`` of WAV and FLAC is "PCM_16", the usual
    one, or "PCM_24"; of WAV also "FLOAT".
    """
    samples, rate, name = output.samples, output.rate, form.name
    if name == "pcm":
        file.writelines(as_pcm(block) for block in _blocks(samples))
        return
    coding = _coding(name, _LIMITS[name], samples.shape[0], rate, subtype)
    try:
        with opened(file, form, rate, samples.shape[0], subtype) as sound:
            for block in _blocks(samples):
                sound.write(_frames(block, coding))
            silence = ending(name, samples.shape[1], rate, samples.shape[0])
            if silence is not None:
                sound.write(silence)
    except (RuntimeError, ValueError) as error:
        raise _unwritten(error, name, rate, list(samples.shape)) from error


def opened(file: Any, form: Format, rate: int, channels: int, subtype: str | None = None, **options: Any) -> Any:
    """A ``soundfile.SoundFile`` of a format but "pcm" that writes to a file; ``options`` are soundfile's.

    A SaveError: the format holds no such sound.
    """
    limits = _LIMITS[form.name]
    coding = _coding(form.name, limits, channels, rate, subtype)
    soundfile = _soundfile(form)
    try:
        return soundfile.SoundFile(file, "w", rate, channels, subtype=coding, format=limits.container, **options)
    except (RuntimeError, ValueError) as error:  # ValueError: a libsndfile that was built without the format
        raise _unwritten(error, form.name, rate, [channels, 0]) from error


def as_pcm(samples: NDArray[np.float32]) -> bytes:
    """Samples [channels, n] as signed 16 bits, little endian, interleaved."""
    return _levels(samples, 16).astype("<i2").tobytes()


def ending(name: str, frames: int, rate: int, channels: int) -> NDArray[np.float32] | None:
    """What a file of a format has behind so many frames: float32 [n, channels]."""
    return np.zeros((_silence(frames, rate), channels), np.float32) if name == "opus" else None


def _unwritten(error: Exception, name: str, rate: int, shape: list[int]) -> SaveError:
    reason = getattr(error, "error_string", error)
    return SaveError(
        f"libsndfile writes no {name} of {shape[0]} x {shape[1]} samples at {rate} Hz ({reason});"
        " save it as .wav, or install a newer soundfile"
    )


def _blocks(samples: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    for start in range(0, samples.shape[1], _BLOCK):
        yield samples[:, start : start + _BLOCK]


def _frames(samples: NDArray[np.float32], subtype: str) -> NDArray[Any]:
    """Samples as soundfile takes them, [frames, channels]: float32, or int32 whose upper bits count."""
    if subtype in _BITS:
        bits = _BITS[subtype]
        return np.left_shift(_levels(samples, bits), 32 - bits)
    frames = np.ascontiguousarray(samples.T)
    return frames if subtype == "FLOAT" else frames.clip(-1, 1)


def _levels(samples: NDArray[np.float32], bits: int) -> NDArray[np.int32]:
    """The nearest of 2**bits levels, int32 [frames, channels]; 1 is the highest, as there is no level for it."""
    full = np.float32(1 << (bits - 1))
    levels = np.rint(np.ascontiguousarray(samples.T).clip(-1, 1) * full)
    whole: NDArray[np.int32] = np.minimum(levels, full - 1).astype(np.int32)
    return whole


def _silence(frames: int, rate: int) -> int:
    """Frames of silence behind an Opus file's sound, after which libsndfile ends it well.

    What is in its last block of 20 ms, and the 6.5 ms by which the encoder looks ahead, have to fit into one packet:
    otherwise libsndfile 1.2.2 encodes that block twice (``ogg_opus_flush``), which is heard as a click. They have to
    take more than half of it: a shorter packet is of another mode, with a click where the mode changes.
    """
    block = rate // 50
    last = (frames - 1) % block + 1
    lookahead = block * 13 // 40
    if block // 2 < last + lookahead <= block:
        return 0
    return (block // 4 - last) % block


def _coding(name: str, limits: _Limits, channels: int, rate: int, asked: str | None) -> str:
    """The coding of a sample, where the format can hold the sound."""
    coding = limits.subtypes[0] if asked is None else asked
    if coding not in limits.subtypes:
        raise SaveError(f"{name} has no subtype {asked!r} (known: {', '.join(limits.subtypes)})")
    if rate not in limits.rates:
        raise SaveError(f"{name} takes rates of {limits.said} Hz, got {rate}; save it as .wav, or resample it before")
    if channels > limits.channels:
        raise SaveError(f"{name} takes up to {limits.channels} channels, got {channels}; save it as .wav")
    return coding


def _soundfile(form: Format) -> Any:
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise SaveError(f"saving {form.name} needs soundfile; {form.install}, or save as .pcm") from error
    except OSError as error:
        raise SaveError(
            f"saving {form.name} needs libsndfile, which soundfile does not find ({error}); install it, or save as .pcm"
        ) from error
    return soundfile
