"""Encoding sounds: raw samples with NumPy, files with soundfile (libsndfile)."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SOUND_FORMATS = {".wav": "wav", ".flac": "flac", ".mp3": "mp3", ".opus": "opus", ".ogg": "ogg", ".pcm": "pcm"}
MOST_CHANNELS = 1024
"""Channels that libsndfile holds in any format."""
_EXTRA = 'pip install "vllm-mmout[audio]"'
_BLOCK = 1 << 14
"""Frames that are written at once: libvorbis puts what it gets on the stack (xiph/vorbis issue 99)."""
_BITS = {"PCM_16": 16, "PCM_24": 24}
"""Subtypes of whole numbers; all others take float32."""


@dataclass(frozen=True, slots=True)
class _Format:
    """What one format holds."""

    container: str
    """libsndfile's name of it."""
    subtypes: tuple[str, ...]
    """libsndfile's names of the codings of a sample, the usual one first."""
    channels: int
    """The most that it holds."""
    rates: Container[int]
    """Hz."""
    said: str
    """The rates in words."""


_MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
_FORMATS = {
    "wav": _Format("WAV", ("PCM_16", "PCM_24", "FLOAT"), MOST_CHANNELS, range(1, 2**31), "1 to 2147483647"),
    # RFC 9639, 9.1: 20 bits of a rate, 3 of a number of channels; libFLAC takes no rate above 655350.
    "flac": _Format("FLAC", ("PCM_16", "PCM_24"), 8, range(1, 655351), "1 to 655350"),
    "mp3": _Format("MP3", ("MPEG_LAYER_III",), 2, _MP3_RATES, ", ".join(map(str, _MP3_RATES))),
    # More than two channels are loudspeakers to Opus and Vorbis: the fourth or sixth may be one for bass alone.
    "opus": _Format("OGG", ("OPUS",), 2, _OPUS_RATES, ", ".join(map(str, _OPUS_RATES))),
    # libvorbis has settings for these rates, and may end the process at others (python-soundfile issue 187).
    "ogg": _Format("OGG", ("VORBIS",), 2, range(8000, 192001), "8000 to 192000"),
}


def encode_sound(samples: NDArray[np.float32], rate: int, name: str, options: dict[str, Any]) -> bytes:
    """The bytes of a sound file.

    Opus gets up to 12 ms of silence at its end, so that the end is as it should be, see `_silence`.

    Args:
        samples: float32 [channels, n]; what is outside [-1, 1] is clipped, but in ``FLOAT``.
        rate: of the samples, in Hz.
        name: "wav", "flac", "mp3", "opus", "ogg" or "pcm".
        options: ``subtype`` of WAV and FLAC: "PCM_16", the usual one, or "PCM_24"; of WAV also "FLOAT".

    Raises:
        SaveError: soundfile is not installed, the format cannot hold the sound, or an option is unknown.

    """
    subtype = _subtype(name, dict(options))
    if name == "pcm":
        return b"".join(_levels(block, 16).astype("<i2").tobytes() for block in _blocks(samples))
    format_ = _FORMATS[name]
    _check(samples.shape[0], rate, name, format_)
    soundfile = _soundfile(name)
    buffer = BytesIO()
    try:
        with soundfile.SoundFile(
            buffer, "w", rate, samples.shape[0], subtype=subtype, format=format_.container
        ) as file:
            for block in _blocks(samples):
                file.write(_frames(block, subtype))
            if name == "opus":
                file.write(np.zeros((_silence(samples.shape[1], rate), samples.shape[0]), np.float32))
    except (RuntimeError, ValueError) as error:  # ValueError: a libsndfile that was built without the format
        reason = getattr(error, "error_string", error)
        raise SaveError(
            f"libsndfile writes no {name} of {samples.shape[0]} x {samples.shape[1]} samples at {rate} Hz ({reason});"
            " save it as .wav, or install a newer soundfile"
        ) from error
    return buffer.getvalue()


def _blocks(samples: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """Samples [channels, n] piece by piece."""
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


def _subtype(name: str, options: dict[str, Any]) -> str:
    """The coding of a sample."""
    asked = options.pop("subtype", None)
    if options:
        raise SaveError(f"unknown option {', '.join(sorted(options))} for {name} (known: subtype, for WAV and FLAC)")
    known = _FORMATS[name].subtypes if name in _FORMATS else ("PCM_16",)
    if asked is None:
        return known[0]
    if len(known) == 1:
        raise SaveError(f"{name} has one coding and no subtype, got {asked!r}; leave it out, or save as WAV or FLAC")
    if asked not in known:
        raise SaveError(f"{name} has no subtype {asked!r} (known: {', '.join(known)})")
    return str(asked)


def _check(channels: int, rate: int, name: str, format_: _Format) -> None:
    """Refuse what a format cannot hold."""
    if rate not in format_.rates:
        raise SaveError(f"{name} takes rates of {format_.said} Hz, got {rate}; save it as .wav, or resample it before")
    if channels > format_.channels:
        raise SaveError(f"{name} takes up to {format_.channels} channels, got {channels}; save it as .wav")


def _soundfile(name: str) -> Any:
    """The module, imported when the first sound is written."""
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise SaveError(f"saving {name} needs soundfile; {_EXTRA}, or save as .pcm") from error
    except OSError as error:
        raise SaveError(
            f"saving {name} needs libsndfile, which soundfile does not find ({error}); install it, or save as .pcm"
        ) from error
    return soundfile
