"""Check the request fields of models that generate tokens, and describe these fields by JSON schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams

from vllm_mmout.messages import shown
from vllm_mmout.option import options_of, said
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.request.fields import USELESS, Fields, IgnoredFields, PictureFields, check_format, made
from vllm_mmout.serving.response.format_choice import SERVERS
from vllm_mmout.serving.response.result_files import SOUND_TYPES
from vllm_mmout.wings.tokens.serving.sizes import AUTO

RESPONSE_FORMATS: Final = tuple(SOUND_TYPES)
"""File formats that a client may request for sound. They are OpenAI's formats without AAC, which this package cannot
write."""
_SEEDS: Final = 1 << 63
Ids = tuple[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)], ...]


class _Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling fields that a request may contain, with their types and ranges. vLLM makes all further checks."""

    temperature: Annotated[float | None, said("0 takes the most likely token.", ge=0, le=2)] = None
    top_p: Annotated[float | None, msgspec.Meta(gt=0, le=1)] = None
    top_k: Annotated[int | None, said("0 or -1 means all tokens.", ge=-1)] = None
    min_p: Annotated[float | None, msgspec.Meta(ge=0, le=1)] = None
    repetition_penalty: Annotated[float | None, msgspec.Meta(gt=0)] = None
    seed: Annotated[int | None, msgspec.Meta(ge=-_SEEDS, le=_SEEDS - 1)] = None
    max_tokens: Annotated[
        int | None, said("by default the tokens of a picture of this size, and for speech all tokens that fit.", ge=1)
    ] = None
    min_tokens: Annotated[int | None, msgspec.Meta(ge=0)] = None
    allowed_token_ids: Annotated[Ids | None, msgspec.Meta(min_length=1)] = None
    stop_token_ids: Ids | None = None
    stop: str | tuple[str, ...] | None = None
    ignore_eos: bool | None = None


SAMPLING: Final = options_of(_Sampling)


def sampling_params(
    client_values: Mapping[str, Any], usual: Mapping[str, Any], *, n: int, length: int | None, left: int
) -> SamplingParams:
    """Return vLLM's sampling params from the client's values and the model's defaults (``usual``).

    ``length`` is the maximum number of tokens of an answer without ``max_tokens``, or None. ``left`` is the number of
    tokens that the prompt leaves.
    """
    most = client_values.get("max_tokens")
    if most is not None and most > left:
        raise ApiError(
            400,
            f"max_tokens must be at most {left}, the tokens that the prompt leaves of the model's length, got {most}",
            param="max_tokens",
        )
    limits = (left, length) if most is None else (most,)
    client_fields = {name: list(value) if isinstance(value, tuple) else value for name, value in client_values.items()}
    chosen = {**usual, **client_fields, "n": n, "max_tokens": min(limit for limit in limits if limit is not None)}
    seed = chosen.get("seed")
    if seed is not None and not -_SEEDS <= seed <= _SEEDS - n:  # each further answer takes the next seed
        raise ApiError(400, f"seed must be a number of 64 bits, got {seed}", param="seed")
    try:
        return SamplingParams(**chosen, output_kind=RequestOutputKind.FINAL_ONLY)
    except VLLMValidationError as error:
        raise ApiError(400, Exception.__str__(error), param=_wrong_field(error, (*SAMPLING, "n"))) from error


def _wrong_field(error: VLLMValidationError, names: Sequence[str]) -> str | None:
    """Return the name of the request field that caused vLLM's ``error``. Return None if the error names no field.

    The name is the error's attribute ``parameter``, or else the first word of its message that is one of ``names``.
    """
    named = getattr(error, "parameter", None)
    if named is not None:
        return str(named)
    words = str(error).replace(",", " ").split()
    return next((word for word in words if word in names), None)


_SIZES: Final = "^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"
_NAME: Final = 512
"""Maximum length in characters of any name in a request, such as the name of a model or voice."""


class TokenImagesRequest(PictureFields, frozen=True, kw_only=True):
    """Fields of a request to ``/v1/images/generations``."""

    prompt: Annotated[str, said("the text from which pictures are made.", max_length=32_000, verbatim=True)]
    n: Annotated[int, said("number of answers of the model.", ge=1, le=10)] = 1  # as at OpenAI
    size: Annotated[str, said('"auto", or WIDTHxHEIGHT in pixels.')] = AUTO
    stream: Annotated[bool, said("whether the answer comes as events.")] = False
    partial_images: Annotated[
        int, said("number of previews sent as events before the picture; its rows must be known.", ge=0, le=3)
    ] = 0
    sampling: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Values of the request's sampling fields, such as ``temperature``, by field. `SAMPLING` lists the allowed
    fields."""


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a request to ``/v1/audio/speech``."""

    input: Annotated[str, said("the text to speak.", max_length=4096, verbatim=True)]  # as at OpenAI
    voice: str | None = None
    """Name of the voice, or None if the client does not choose a voice."""
    model: Annotated[str | None, said("served name; the server's model by default.", max_length=_NAME)] = None
    instructions: Annotated[
        str | None,
        said("how to speak the text, if the model's prompt has a place for that.", max_length=4096, verbatim=True),
    ] = None
    response_format: Annotated[str, said("format of the sound.", choices=RESPONSE_FORMATS)] = "mp3"
    stream_format: Annotated[
        Literal["audio", "sse"] | None,
        said(
            "form of a sound that is sent while it is made, the bytes of a file or events; by default it is sent whole."
        ),
    ] = None
    chunk_seconds: Annotated[
        float | None,
        said("minimum length of the pieces of a sound that is sent while it is made.", ge=0.001, unit="seconds"),
    ] = None
    output: Annotated[
        Literal["media", "mixed"] | None,
        said('"media": a sound and nothing else, always whole; "mixed": whole sounds with text around them.'),
    ] = None
    sampling: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Values of the request's sampling fields, such as ``temperature``, by field. `SAMPLING` lists the allowed
    fields."""


class _IgnoredSpeechFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a speech request that are checked and then ignored."""

    user: Annotated[str | None, said("the client's name for its user.", max_length=_NAME)] = None
    safety_identifier: Annotated[str | None, said("the client's name for its user.", max_length=_NAME)] = None
    speed: Annotated[
        float,
        said(
            "speed of the speech.",
            choices=[1],
            why="this model has one speed; leave it out, and change the speed of the sound",
        ),
    ] = 1.0


_MADE: Final = frozenset({"sampling", "voice"})
IMAGES: Final = Fields(
    "/v1/images/generations of this model",
    {
        **options_of(TokenImagesRequest, without={*_MADE, *SERVERS}),
        **options_of(IgnoredFields, without=("n",)),
        **SAMPLING,
    },
    {
        **dict.fromkeys(("image", "images", "mask"), "this model makes pictures only from texts; leave it out"),
        **USELESS,
    },
    later=SAMPLING,
)
SPEECH: Final = Fields(
    "/v1/audio/speech of this model",
    {**options_of(SpeechRequest, without=_MADE), **options_of(_IgnoredSpeechFields), **SAMPLING},
    USELESS,
    apart=("voice",),
    later=SAMPLING,
)


def images_request(body: Any) -> TokenImagesRequest:
    """Parse the JSON body of a request to ``/v1/images/generations``. Raise an ApiError if a field is wrong."""
    fields = IMAGES.of_object(body)
    _needed(fields, "prompt", "the text from which to make the picture")
    if fields.get("partial_images") and not fields.get("stream"):
        raise ApiError(400, "partial_images are sent as events; send stream=true as well", param="partial_images")
    for name, usual in (("n", 1), ("response_format", "b64_json")) if fields.get("stream") else ():
        if fields.get(name, usual) != usual:
            raise ApiError(400, f"events hold one picture as base64; leave out {name} or stream", param=name)
    check_format(fields)
    return made(TokenImagesRequest, fields, TokenImagesRequest.__struct_fields__, sampling=_sampling(fields))


def speech_request(body: Any) -> SpeechRequest:
    """Parse the JSON body of a request to ``/v1/audio/speech``. Raise an ApiError if a field is wrong."""
    fields = SPEECH.of_object(body)
    _needed(fields, "input", "the text to speak")
    return made(
        SpeechRequest,
        fields,
        SpeechRequest.__struct_fields__,
        voice=voice_name(body.get("voice")),
        sampling=_sampling(fields),
    )


def _needed(fields: Mapping[str, Any], name: str, description: str) -> None:
    if not fields.get(name, "").strip():
        raise ApiError(400, f"{name} is missing; send {description}", param=name)


def voice_name(value: Any, param: str = "voice") -> str | None:
    """Return a voice's name, which clients send as text or as ``{"id": text}``. Errors name the field ``param``."""
    name = value.get("id") if isinstance(value, Mapping) and len(value) == 1 else value
    if not isinstance(name, str) and value is not None:
        raise ApiError(400, f'{param} must be text or {{"id": text}}, got {shown(value)}', param=param)
    if name is not None and len(name) > _NAME:
        raise ApiError(400, f"{param} has {len(name)} characters, but may have only {_NAME}; shorten it", param=param)
    return name or None


def _sampling(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in SAMPLING if name in fields}


_VOICE: Final = {"type": "string", "maxLength": _NAME}
IMAGES_SCHEMA: Final = IMAGES.schema(
    "prompt",
    prompt={**IMAGES.options["prompt"].schema, "minLength": 1},
    size={**IMAGES.options["size"].schema, "pattern": _SIZES},
)
"""JSON schema of the request fields of ``/v1/images/generations``."""
SPEECH_SCHEMA: Final = SPEECH.schema(
    "input",
    input={**SPEECH.options["input"].schema, "minLength": 1},
    voice={
        "description": "name of a voice, used if the model's prompt has a place for it.",
        "anyOf": [
            _VOICE,
            {"type": "object", "properties": {"id": _VOICE}, "required": ["id"], "additionalProperties": False},
        ],
    },
)
"""JSON schema of the request fields of ``/v1/audio/speech``."""
