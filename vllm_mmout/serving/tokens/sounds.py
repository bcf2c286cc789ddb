"""Sounds as clients of ``/v1/audio/speech`` get them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from vllm_mmout.errors import DecodeError, SaveError
from vllm_mmout.outputs.audio import AudioOutput
from vllm_mmout.serving.encoded import SOUND_TYPES, Encoded
from vllm_mmout.serving.errors import ApiError

if TYPE_CHECKING:
    from typing import Any

RESPONSE_FORMATS: Final = tuple(SOUND_TYPES)
"""OpenAI's, but for AAC, which nothing here writes."""


def joined(sounds: Sequence[Any]) -> AudioOutput:
    """One sound of those of one answer, one after the other.

    Raises:
        DecodeError: they are no sounds, or differ in their rate or channels.

    """
    kinds = {type(sound).__name__ for sound in sounds if not isinstance(sound, AudioOutput)}
    if kinds:
        raise DecodeError(f"the processor returns {', '.join(sorted(kinds))}, and speech is of AudioOutput")
    if len(sounds) == 1:
        return sounds[0]  # type: ignore[no-any-return]
    forms = {(sound.rate, sound.channels) for sound in sounds}
    if len(forms) > 1:
        said = ", ".join(f"{rate} Hz with {channels} channels" for rate, channels in sorted(forms))
        raise DecodeError(f"the sounds of one answer are of {said}, and cannot be one")
    whole = AudioOutput(np.concatenate([sound.samples for sound in sounds], axis=1), sounds[0].rate)
    whole.partial = any(sound.partial for sound in sounds)
    return whole


def encoded(sound: AudioOutput, name: str) -> Encoded:
    """The bytes of a sound file; blocks.

    Args:
        sound: any.
        name: one of `RESPONSE_FORMATS`.

    Raises:
        ApiError: the format cannot hold the sound (400).

    """
    try:
        content = sound.to_bytes(name)
    except SaveError as error:
        raise _refused(error, sound.rate, sound.channels) from error
    form = f"; rate={sound.rate}; channels={sound.channels}" if name == "pcm" else ""  # it has no header
    return Encoded(content, name, media_type=f"{SOUND_TYPES[name]}{form}")


def check_format(name: str, rate: int | None) -> None:
    """Refuse a format before the model runs that its sounds cannot have; blocks.

    Args:
        name: one of `RESPONSE_FORMATS`.
        rate: of the model's sounds, Hz; None: not known before.

    Raises:
        ApiError: it cannot hold them, or cannot be written on this machine (400).

    """
    if rate is not None:
        encoded(_silence(rate), name)


def _refused(error: SaveError, rate: int, channels: int) -> ApiError:
    fact = str(error).partition("; ")[0]
    can = ", ".join(name for name in RESPONSE_FORMATS if _holds(name, rate, channels))
    return ApiError(400, f"{fact}; choose another response_format: {can}", param="response_format")


def _holds(name: str, rate: int, channels: int) -> bool:
    try:
        _silence(rate, channels).to_bytes(name)
    except SaveError:
        return False
    return True


def _silence(rate: int, channels: int = 1) -> AudioOutput:
    return AudioOutput(np.zeros((channels, 1), np.float32), rate)
