"""Encode sounds as raw samples (with NumPy) and as sound files (with soundfile, a binding of libsndfile)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from vllm_mmout.outputs.formats import Format
    from vllm_mmout.outputs.formats.contents import SoundContent

MOST_CHANNELS = 1024
"""Maximum number of channels that libsndfile supports in any format."""
_BLOCK = 1 << 14
"""Number of frames per write. A much larger write could overflow the stack in libvorbis (xiph/vorbis issue 99)."""
_BITS = {"PCM_16": 16, "PCM_24": 24}
"""Maps libsndfile's names of integer sample encodings to bits per sample. For all other encodings, libsndfile gets
float32 samples."""


@dataclass(frozen=True, slots=True)
class _Limits:
    container: str
    """libsndfile's name of the file format."""
    subtypes: tuple[str, ...]
    """libsndfile's names of the sample encodings that the format supports, the default first."""
    channels: int
    """Maximum number of sound channels that the format supports."""
    rates: Sequence[int]
    """Supported sample rates in Hz."""

    @property
    def rates_text(self) -> str:
        is_range = isinstance(self.rates, range)
        return f"{self.rates[0]} to {self.rates[-1]}" if is_range else ", ".join(map(str, self.rates))


_LIMITS = {
    "wav": _Limits("WAV", ("PCM_16", "PCM_24", "FLOAT"), MOST_CHANNELS, range(1, 2**31)),
    # RFC 9639, 9.1: 20 bits for the rate and 3 for the number of channels. libFLAC rejects rates above 655350.
    "flac": _Limits("FLAC", ("PCM_16", "PCM_24"), 8, range(1, 655351)),
    "mp3": _Limits("MP3", ("MPEG_LAYER_III",), 2, (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)),
    # Opus and Vorbis assign more than two channels to loudspeakers, and the fourth or sixth may be for bass only.
    "opus": _Limits("OGG", ("OPUS",), 2, (8000, 12000, 16000, 24000, 48000)),
    # libvorbis has settings for these rates. With other rates it may crash the process (python-soundfile issue 187).
    "ogg": _Limits("OGG", ("VORBIS",), 2, range(8000, 192001)),
}


def write(output: SoundContent, file: BinaryIO, form: Format, subtype: str | None = None) -> None:
    """Write a sound file. Samples outside [-1, 1] are clipped, except with subtype "FLOAT".

    ``subtype`` is "PCM_16" (the default) or "PCM_24" for WAV and FLAC, or "FLOAT" for WAV. Opus gets up to 12 ms of
    silence at the end, see `_silence`.
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
        raise _save_error(error, name, rate, list(samples.shape)) from error


def opened(file: Any, form: Format, rate: int, channels: int, subtype: str | None = None, **options: Any) -> Any:
    """Open a ``soundfile.SoundFile`` that writes to ``file``, in any format except "pcm".

    ``options`` are passed to soundfile. Raise SaveError if the format cannot hold such a sound.
    """
    limits = _LIMITS[form.name]
    coding = _coding(form.name, limits, channels, rate, subtype)
    soundfile = _soundfile(form)
    try:
        return soundfile.SoundFile(file, "w", rate, channels, subtype=coding, format=limits.container, **options)
    except (RuntimeError, ValueError) as error:  # ValueError if libsndfile was built without the format
        raise _save_error(error, form.name, rate, [channels, 0]) from error


def as_pcm(samples: NDArray[np.float32]) -> bytes:
    """Convert samples [channels, n] to signed 16-bit little-endian integers with interleaved channels."""
    return _levels(samples, 16).astype("<i2").tobytes()


def ending(name: str, frames: int, rate: int, channels: int) -> NDArray[np.float32] | None:
    """Return samples of silence to append to an Opus file, which would otherwise end with a click.

    The silence is float32 [n, channels]. ``frames`` is the number of frames of the sound. Return None if the format
    ``name`` is not "opus".
    """
    return np.zeros((_silence(frames, rate), channels), np.float32) if name == "opus" else None


def _save_error(error: Exception, name: str, rate: int, shape: list[int]) -> SaveError:
    reason = getattr(error, "error_string", error)
    return SaveError(
        f"libsndfile writes no {name} of {shape[0]} x {shape[1]} samples at {rate} Hz ({reason});"
        " save it as .wav, or install a newer soundfile"
    )


def _blocks(samples: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    for start in range(0, samples.shape[1], _BLOCK):
        yield samples[:, start : start + _BLOCK]


def _frames(samples: NDArray[np.float32], subtype: str) -> NDArray[Any]:
    """Convert samples to an array [frames, channels] for soundfile: int32 for integer encodings, else float32.

    An int32 has the sample in its upper bits.
    """
    if subtype in _BITS:
        bits = _BITS[subtype]
        return np.left_shift(_levels(samples, bits), 32 - bits)
    frames = np.ascontiguousarray(samples.T)
    return frames if subtype == "FLOAT" else frames.clip(-1, 1)


def _levels(samples: NDArray[np.float32], bits: int) -> NDArray[np.int32]:
    """Quantize samples in [-1, 1] to integers of ``bits`` bits, int32 [frames, channels].

    1.0 becomes the largest integer, 2**(bits-1) - 1.
    """
    full = np.float32(1 << (bits - 1))
    levels = np.rint(np.ascontiguousarray(samples.T).clip(-1, 1) * full)
    integers: NDArray[np.int32] = np.minimum(levels, full - 1).astype(np.int32)
    return integers


def _silence(frames: int, rate: int) -> int:
    """Return the number of silent frames to append to an Opus file, so that it ends without a click.

    The sound in the last block of 20 ms and the encoder's lookahead of 6.5 ms must fit into a single packet. Otherwise
    libsndfile 1.2.2 encodes that block twice (``ogg_opus_flush``), which is heard as a click. They must also fill more
    than half of the packet, since a shorter packet has another mode, and the change of mode is heard as a click.
    """
    block = rate // 50
    last = (frames - 1) % block + 1
    lookahead = block * 13 // 40
    if block // 2 < last + lookahead <= block:
        return 0
    return (block // 4 - last) % block


def _coding(name: str, limits: _Limits, channels: int, rate: int, subtype: str | None) -> str:
    """Return libsndfile's name of the sample encoding of a sound file.

    Raise SaveError if the format ``name`` does not support ``subtype``, ``rate`` or the number of ``channels``.
    """
    coding = limits.subtypes[0] if subtype is None else subtype
    if coding not in limits.subtypes:
        raise SaveError(f"{name} has no subtype {subtype!r} (known: {', '.join(limits.subtypes)})")
    if rate not in limits.rates:
        raise SaveError(
            f"{name} takes rates of {limits.rates_text} Hz, got {rate}; save it as .wav, or resample it before"
        )
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
