"""Parse the request fields ``modalities`` and ``audio`` (OpenAI's) of chats that ask for pictures or sounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.messages import shown, unknown
from vllm_mmout.serving.chat import TEXT, asks_for_media
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.wings.tokens.guided.admission import GUIDED
from vllm_mmout.wings.tokens.serving.fields import RESPONSE_FORMATS, voice_name
from vllm_mmout.wings.tokens.serving.speech import check_format

if TYPE_CHECKING:
    from vllm_mmout.wings.tokens.serving.service import Maker, TokenService

PCM: Final = "pcm16"
"""OpenAI's name for raw audio samples. Only this format can be streamed while a sound is generated."""
FORMATS: Final = (PCM, *RESPONSE_FORMATS)
_FIELDS: Final = ("format", "voice")
FORMAT: Final = "audio.format"
"""Name of the request field that chooses the file format of sounds."""


@dataclass(frozen=True, slots=True)
class RequestedMedia:
    """Options of a chat that asks for pictures or sounds, such as the file format and the voice."""

    maker: Maker
    text: bool
    """Whether the client asks for text in addition to pictures or sounds."""
    form: str | None = None
    """File format of sounds in the answer, such as "mp3". None if the chat asks for pictures."""
    voice: str | None = None
    budget: AnswerBudget = field(default_factory=AnswerBudget)
    """Limit on the total bytes of the answer's pictures or sounds."""
    output: str | None = None
    """Value for `OutputParams.output`. "media" and "mixed" allow only complete pictures or sounds. None allows any
    tokens."""

    def check(self) -> None:
        """Raise an ApiError if the file format cannot hold the model's sounds. Blocks while it encodes a test sound."""
        if self.form is not None:
            check_format(self.form, getattr(self.maker.processor, "sampling_rate", None), FORMAT)


def asked_media(request: Any, service: TokenService) -> RequestedMedia | None:
    """Return the kind of media that a chat request asks for, or None if it asks only for text.

    Raises:
        ApiError: the request cannot be fulfilled. The error has status 400, and names the field.

    """
    modalities: Any = getattr(request, "modalities", None)
    if not asks_for_media(modalities):
        return None
    media = _media(modalities, service)
    _check(request)
    maker, text, budget = service.makers[media], TEXT in modalities, AnswerBudget(service.options.max_answer)
    if media == "image":
        return RequestedMedia(maker, text, budget=budget, output=_output(request))
    audio = _audio(getattr(request, "audio", None))
    form = _format(audio.get("format"), streamed=bool(request.stream))
    voice = voice_name(audio.get("voice"), "audio.voice")
    return RequestedMedia(maker, text, form, voice, budget, _output(request))


def _output(request: Any) -> str | None:
    """Check the request field ``output`` of a chat, and return its value."""
    output: Any = getattr(request, "output", None)
    if output is not None and output not in GUIDED:
        raise ApiError(400, f"output must be {' or '.join(GUIDED)}, got {shown(output)}", param="output")
    return None if output is None else str(output)


def _media(modalities: Any, service: TokenService) -> str:
    """Return the modality, "image" or "audio", that a chat asks for besides text."""
    modality_names = (TEXT, *service.makers)
    if not isinstance(modalities, list) or any(modality not in modality_names for modality in modalities):
        raise ApiError(
            400,
            f"modalities is {shown(modalities)}, but must be a list of {', '.join(map(repr, modality_names))}: the"
            f" model {service.binding.model!r} gives nothing else",
            param="modalities",
        )
    media = dict.fromkeys(modality for modality in modalities if modality != TEXT)
    if len(media) > 1:
        message = (
            f"modalities is {shown(modalities)}, but one answer has media of one kind only; name 'image' or 'audio'"
        )
        raise ApiError(400, message, param="modalities")
    return str(next(iter(media)))


def _check(request: Any) -> None:
    """Raise an ApiError if a chat has fields that cannot be combined with pictures or sounds."""
    if getattr(request, "use_beam_search", False):
        raise ApiError(
            400, "use_beam_search makes only text; leave out use_beam_search or modalities", param="use_beam_search"
        )
    for message in request.messages:
        if isinstance(message, Mapping) and message.get("audio") and not message.get("content"):
            raise ApiError(
                400,
                "messages has a sound of an earlier answer, but this server keeps no sounds; send its transcript as the"
                " message's content",
                param="messages",
            )


def _audio(audio: Any) -> Mapping[str, Any]:
    if audio is None:
        message = f'audio is missing; send {{"format": ...}}, one of {", ".join(FORMATS)}, with modalities "audio"'
        raise ApiError(400, message, param="audio")
    if not isinstance(audio, Mapping):
        raise ApiError(400, f'audio must be {{"voice": ..., "format": ...}}, got {shown(audio)}', param="audio")
    for name in audio:
        if name not in _FIELDS:
            raise api_error(unknown(name, _FIELDS, kind="field", where=" of audio"))
    return audio


def _format(name: Any, *, streamed: bool) -> str:
    if name is None:
        raise ApiError(400, f"{FORMAT} is missing; choose one of {', '.join(FORMATS)}", param=FORMAT)
    if name not in FORMATS:
        raise ApiError(400, f"{FORMAT} must be one of {', '.join(FORMATS)}, got {shown(name)}", param=FORMAT)
    form = "pcm" if name == PCM else str(name)
    if streamed and form != "pcm":
        message = (
            f"{FORMAT} must be {PCM} with stream, got {name!r}: other formats cannot be streamed; leave out stream"
        )
        raise ApiError(400, message, param=FORMAT)
    return form
