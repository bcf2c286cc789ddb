"""SoundStream: a sound file whose bytes come while its samples do."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs.formats import FORMATS
from vllm_mmout.outputs.formats.sounds import as_pcm, ending, opened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_UNKNOWN = 0xFFFFFFFF
"""The size in the header of a WAV whose end is not known, as players take it: all that comes."""


class SoundStream:
    """Writes a file in "wav", "pcm", "flac", "mp3", "opus" or "ogg", piece by piece.

    What a file says of its whole in its beginning (its length, a checksum) is left unknown.

    Args:
        name: the format.
        rate: samples of a channel in a second, Hz.
        channels: number of channels.

    Raises:
        SaveError: the format is unknown, or cannot hold such a sound.

    """

    def __init__(self, name: str, rate: int, channels: int) -> None:
        if name not in FORMATS or "audio" not in FORMATS[name].writers:
            raise SaveError(f"no sound is written as {name!r}")
        self._name, self._rate, self._channels = name, rate, channels
        self._sent = _Sent()
        self._samples = 0
        self._plain = name in {"wav", "pcm"}
        # Of an MP3 without a table of its whole, readers take its length from its first frame's bit rate.
        options: dict[str, Any] = {"bitrate_mode": "CONSTANT", "compression_level": 0.5} if name == "mp3" else {}
        self._sound: Any = None
        if name != "pcm":
            self._sound = opened(self._sent, FORMATS[name], rate, channels, **options)
        if name == "wav":  # libsndfile would write an empty sound's sizes, and those of the whole when it is closed
            self._sound.close()
            self._sent = _Sent()
            self._sent.write(_wav_header(rate, channels))

    def write(self, samples: NDArray[np.float32]) -> bytes:
        """The bytes that are there when these float32 [channels, n] have come, maybe none."""
        self._samples += samples.shape[1]
        if self._plain:
            self._sent.write(as_pcm(samples))
        else:
            self._sound.write(samples.T.clip(-1, 1))
        return self._sent.take()

    def close(self) -> bytes:
        """The bytes that are left at the end."""
        if not self._plain:
            silence = ending(self._name, self._samples, self._rate, self._channels)
            if silence is not None:
                self._sound.write(silence)
            with suppress(RuntimeError):  # of what it would write anew in the bytes that were sent
                self._sound.close()
        return self._sent.take()


class _Sent:
    """A file whose bytes are taken out as they are written; what is written again where they were is dropped."""

    def __init__(self) -> None:
        self._taken = 0
        self._bytes = bytearray()
        self._at = 0

    def write(self, data: bytes) -> int:
        data = bytes(data)
        start = self._at - self._taken
        self._at += len(data)
        kept = data[max(0, -start) :]
        if kept:
            start = max(0, start)
            self._bytes[start : start + len(kept)] = kept
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        end = self._taken + len(self._bytes)
        self._at = offset + {0: 0, 1: self._at, 2: end}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int = -1) -> bytes:
        start = max(0, self._at - self._taken)
        data = bytes(self._bytes[start:] if count < 0 else self._bytes[start : start + count])
        self._at += len(data)
        return data

    def take(self) -> bytes:
        """All bytes since the last call."""
        data = bytes(self._bytes)
        self._taken += len(data)
        self._bytes.clear()
        return data


def _wav_header(rate: int, channels: int) -> bytes:
    """Of 16 bits a sample; see http://soundfile.sapp.org/doc/WaveFormat/."""
    frame = 2 * channels
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * frame, frame, 16)
    return (
        struct.pack("<4sI4s4sI", b"RIFF", _UNKNOWN, b"WAVE", b"fmt ", len(form))
        + form
        + struct.pack("<4sI", b"data", _UNKNOWN)
    )
