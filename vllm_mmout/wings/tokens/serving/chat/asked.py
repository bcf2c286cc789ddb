"""What a chat asks for beside text, ``modalities`` and ``audio`` of OpenAI's interface, checked as a whole."""

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
"""OpenAI's name in chats of raw samples, the only sound whose pieces are a sound each."""
FORMATS: Final = (PCM, *RESPONSE_FORMATS)
_FIELDS: Final = ("format", "voice")
FORMAT: Final = "audio.format"
"""The field of a sound's format, in errors."""


@dataclass(frozen=True, slots=True)
class AskedMedia:
    """What one chat is answered with."""

    maker: Maker
    text: bool
    """Whether the text is wanted too."""
    form: str | None = None
    """Format of the sounds, as files are called; None where pictures are asked for."""
    voice: str | None = None
    budget: AnswerBudget = field(default_factory=AnswerBudget)
    """Budget of the bytes of the answer's media."""
    output: str | None = None
    """Which whole media the answer is guided to, as `OutputParams.output`; None: it may hold what the model writes."""

    def check(self) -> None:
        """Refuse a format that cannot hold the model's sounds; blocks."""
        if self.form is not None:
            check_format(self.form, getattr(self.maker.processor, "sampling_rate", None), FORMAT)


def asked_media(request: Any, service: TokenService) -> AskedMedia | None:
    """What a chat (vLLM's ``ChatCompletionRequest``) asks for; None of one that is for vLLM alone.

    Raises:
        ApiError: what cannot be had, or honoured, with 400 and the field.

    """
    modalities: Any = getattr(request, "modalities", None)
    if not asks_for_media(modalities):
        return None
    media = _media(modalities, service)
    _check(request)
    maker, text, budget = service.makers[media], TEXT in modalities, AnswerBudget(service.options.max_answer)
    if media == "image":
        return AskedMedia(maker, text, budget=budget, output=_output(request))
    audio = _audio(getattr(request, "audio", None))
    form = _format(audio.get("format"), streamed=bool(request.stream))
    voice = voice_name(audio.get("voice"), "audio.voice")
    return AskedMedia(maker, text, form, voice, budget, _output(request))


def _output(request: Any) -> str | None:
    """Return the field ``output`` of a chat."""
    output: Any = getattr(request, "output", None)
    if output is not None and output not in GUIDED:
        raise ApiError(400, f"output must be {' or '.join(GUIDED)}, got {shown(output)}", param="output")
    return None if output is None else str(output)


def _media(modalities: Any, service: TokenService) -> str:
    """The modality beside text that is asked for."""
    known = (TEXT, *service.makers)
    if not isinstance(modalities, list) or any(one not in known for one in modalities):
        raise ApiError(
            400,
            f"modalities is {shown(modalities)}, and must be a list of {', '.join(map(repr, known))}: the model"
            f" {service.binding.model!r} gives nothing else",
            param="modalities",
        )
    media = dict.fromkeys(one for one in modalities if one != TEXT)
    if len(media) > 1:
        message = f"modalities is {shown(modalities)}, and one answer has media of one kind; name 'image' or 'audio'"
        raise ApiError(400, message, param="modalities")
    return str(next(iter(media)))


def _check(request: Any) -> None:
    """Refuse what an answer with media cannot be made with."""
    if getattr(request, "use_beam_search", False):
        raise ApiError(400, "use_beam_search makes text alone; leave it, or modalities, out", param="use_beam_search")
    for message in request.messages:
        if isinstance(message, Mapping) and message.get("audio") and not message.get("content"):
            raise ApiError(
                400,
                "messages has a sound of an earlier answer, and this server keeps none; send its transcript as the"
                " message's content",
                param="messages",
            )


def _audio(given: Any) -> Mapping[str, Any]:
    if given is None:
        message = f'audio is missing; send {{"format": ...}}, one of {", ".join(FORMATS)}, with modalities "audio"'
        raise ApiError(400, message, param="audio")
    if not isinstance(given, Mapping):
        raise ApiError(400, f'audio must be {{"voice": ..., "format": ...}}, got {shown(given)}', param="audio")
    for name in given:
        if name not in _FIELDS:
            raise api_error(unknown(name, _FIELDS, kind="field", where=" of audio"))
    return given


def _format(name: Any, *, streamed: bool) -> str:
    if name is None:
        raise ApiError(400, f"{FORMAT} is missing; choose one of {', '.join(FORMATS)}", param=FORMAT)
    if name not in FORMATS:
        raise ApiError(400, f"{FORMAT} must be one of {', '.join(FORMATS)}, got {shown(name)}", param=FORMAT)
    form = "pcm" if name == PCM else str(name)
    if streamed and form != "pcm":
        message = f"{FORMAT} must be {PCM} with stream, got {name!r}: other files come whole; leave out stream"
        raise ApiError(400, message, param=FORMAT)
    return form
