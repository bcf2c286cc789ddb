"""Convert pictures to the field ``images`` of a chat message, and sounds to OpenAI's field ``audio``."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

from vllm_mmout.errors import DecodeError
from vllm_mmout.serving.response.format_choice import FormatChoice
from vllm_mmout.wings.tokens.serving.chat.requested_media import FORMAT, RequestedMedia
from vllm_mmout.wings.tokens.serving.generations import encode_pictures
from vllm_mmout.wings.tokens.serving.speech import encoded, joined

PIECE: Final = 3 << 16
"""Maximum size of the sound data in one event, in bytes before base64 encoding."""


def images(media_options: RequestedMedia, pictures: Sequence[Any], first: int) -> list[dict[str, Any]]:
    """Convert pictures to entries of a message's field ``images``. Their indices begin at ``first``.

    The call blocks while the pictures are encoded.
    """
    entries = encode_pictures(media_options.maker, pictures, FormatChoice(), media_options.budget)
    image_entries = []
    for index, (picture, entry) in enumerate(zip(pictures, entries, strict=True), first):
        data = base64.b64encode(entry.read(0, entry.nbytes)).decode()
        entry.close()
        url = {"url": f"data:{entry.media_type};base64,{data}"}
        note = {"partial": True} if getattr(picture, "partial", False) else {}
        image_entries.append({"type": "image_url", "image_url": url, "index": index, **note})
    return image_entries


def whole_audio(media_options: RequestedMedia, sounds: Sequence[Any], transcript: str) -> dict[str, Any]:
    """Return the value of a message's field ``audio``: the sounds of an answer, joined and encoded as base64.

    The sounds are joined end to end. The call blocks while they are encoded.
    """
    sound = joined(sounds)
    file = encoded(sound, media_options.form or "", FORMAT, media_options.budget)
    data = base64.b64encode(file.read(0, file.nbytes)).decode()
    ended = _audio_trailer(transcript, partial=sound.partial)
    return {**_audio_header(sound), "data": data, **ended}


class AudioDeltas:
    """Converter of a sound to the values of ``delta.audio`` in the events of a streamed chat answer.

    Clients concatenate the texts of all deltas. The id is therefore sent only once, and the joined ``data`` is valid
    base64 too.
    """

    def __init__(self) -> None:
        self._form: tuple[int, int] | None = None
        self._unsent = b""
        """Bytes of the sound that are held back until they fill a group that base64 encodes without padding."""

    def add(self, media_options: RequestedMedia, sounds: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Yield the ``delta.audio`` values for new sounds or chunks of a sound.

        The iterator blocks while sounds are encoded.
        """
        sound = joined(sounds)
        form = (sound.rate, sound.channels)
        if self._form is None:
            self._form = form
            yield _audio_header(sound)
        if form != self._form:
            raise DecodeError(f"the sounds of one answer differ: {self._form} and {form} (Hz, channels)")
        file = encoded(sound, media_options.form or "", FORMAT)
        content = self._unsent + file.read(0, file.nbytes)
        group = (
            6 * sound.channels
        )  # whole frames of two bytes per channel, and whole groups of base64, which are three bytes
        whole = len(content) // group * group
        self._unsent = content[whole:]
        piece = PIECE // group * group
        for at in range(0, whole, piece):
            yield _data(content[at : min(at + piece, whole)])

    def end(self, transcript: str, *, partial: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the last ``delta.audio`` values of the answer: remaining data, the transcript, and the expiry time."""
        if self._form is None:
            return
        if self._unsent:
            yield _data(self._unsent)
        ended = _audio_trailer(transcript, partial=partial)
        last = {"expires_at": ended.pop("expires_at")}
        yield from (ended, last)  # in a separate delta, as OpenAI sends it


def _audio_header(sound: Any) -> dict[str, Any]:
    """Return the fields that are sent before a sound's data: an id, the sample rate and the number of channels."""
    return {"id": f"audio_{uuid4().hex}", "sample_rate": sound.rate, "channels": sound.channels}


def _data(content: bytes) -> dict[str, Any]:
    return {"data": base64.b64encode(content).decode()}


def _audio_trailer(transcript: str, *, partial: bool) -> dict[str, Any]:
    """Return the fields that follow a sound's data. ``expires_at`` is the current time, as sounds are not stored."""
    note = {"partial": True} if partial else {}
    return {"transcript": transcript, "expires_at": int(time.time()), **note}
