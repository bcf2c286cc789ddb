"""SoundStream, which encodes a sound file while its samples arrive."""

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
"""Size in the header of a WAV file of unknown length. With this size, players play until the data ends."""


class SoundStream:
    """Streaming encoder of a sound file in "wav", "pcm", "flac", "mp3", "opus" or "ogg".

    Header fields that depend on the whole sound (its length, a checksum) are set to unknown.

    Args:
        name: name of the format.
        rate: sample rate in Hz.
        channels: number of channels.

    Raises:
        SaveError: the format is unknown, or cannot hold such a sound.

    """

    def __init__(self, name: str, rate: int, channels: int) -> None:
        if name not in FORMATS or "audio" not in FORMATS[name].writers:
            raise SaveError(f"a sound cannot be written as {name!r}")
        self._name, self._rate, self._channels = name, rate, channels
        self._sent = _StreamBuffer()
        self._samples = 0
        self._plain = name in {"wav", "pcm"}
        # Without a table of the whole MP3, readers compute its length from the bit rate of the first frame.
        options: dict[str, Any] = {"bitrate_mode": "CONSTANT", "compression_level": 0.5} if name == "mp3" else {}
        self._sound: Any = None
        if name != "pcm":
            self._sound = opened(self._sent, FORMATS[name], rate, channels, **options)
        if name == "wav":  # libsndfile would write the size of an empty sound, and correct it only when it is closed
            self._sound.close()
            self._sent = _StreamBuffer()
            self._sent.write(_wav_header(rate, channels))

    def write(self, samples: NDArray[np.float32]) -> bytes:
        """Encode samples, float32 [channels, n], and return the bytes that are ready, which may be empty."""
        self._samples += samples.shape[1]
        if self._plain:
            self._sent.write(as_pcm(samples))
        else:
            self._sound.write(samples.T.clip(-1, 1))
        return self._sent.take()

    def close(self) -> bytes:
        """Finish the file, and return its last bytes."""
        if not self._plain:
            silence = ending(self._name, self._samples, self._rate, self._channels)
            if silence is not None:
                self._sound.write(silence)
            with suppress(RuntimeError):  # libsndfile may fail when it rewrites the header, which was sent already
                self._sound.close()
        return self._sent.take()


class _StreamBuffer:
    """In-memory file that an encoder writes to. `take` removes and returns the bytes written so far.

    If the encoder seeks back and changes bytes that `take` has returned already, the change is ignored.
    """

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
        """Remove and return the bytes that the encoder has written since the last call of `take`."""
        data = bytes(self._bytes)
        self._taken += len(data)
        self._bytes.clear()
        return data


def _wav_header(rate: int, channels: int) -> bytes:
    """Return the WAV header for 16-bit samples and unknown length (http://soundfile.sapp.org/doc/WaveFormat/)."""
    frame = 2 * channels
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * frame, frame, 16)
    return (
        struct.pack("<4sI4s4sI", b"RIFF", _UNKNOWN, b"WAVE", b"fmt ", len(form))
        + form
        + struct.pack("<4sI", b"data", _UNKNOWN)
    )
