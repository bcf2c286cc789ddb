"""The fields of requests to models that generate tokens: what was sent becomes a request, or an error that says why."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.field_checks import check_formats
from vllm_mmout.serving.field_types import check_length, converted, shown
from vllm_mmout.serving.tokens.sampling import HINTS as SAMPLING
from vllm_mmout.serving.tokens.sizes import AUTO
from vllm_mmout.serving.tokens.sounds import RESPONSE_FORMATS

Kind = TypeVar("Kind", bound=msgspec.Struct)

MOST_IMAGES: Final = 10
"""As at OpenAI."""
_INPUT: Final = 4096
"""Characters of a text to be spoken, as at OpenAI."""
_TEXTS: Final = {"prompt": 32_000, "input": _INPUT, "instructions": _INPUT}
"""Characters of fields that may be long, or shorter than others."""

_COMMON: Final[dict[str, Any]] = dict.fromkeys(("model", "user", "safety_identifier"), str | None)
_IMAGES: Final[dict[str, Any]] = {
    **_COMMON,
    **dict.fromkeys(("prompt", "output_format", "background", "response_format", "size", "quality"), str | None),
    **dict.fromkeys(("n", "output_compression", "partial_images"), int | None),
    "stream": bool | None,
    **SAMPLING,
}
_SPEECH: Final[dict[str, Any]] = {
    **_COMMON,
    **dict.fromkeys(("input", "instructions", "response_format", "stream_format"), str | None),
    "speed": float | None,
    **SAMPLING,
}
_USELESS: Final = "it would change nothing here; leave it out"
_REFUSED: Final = {
    **dict.fromkeys(("image", "images", "mask"), "this model makes pictures of texts alone; leave it out"),
    **dict.fromkeys(("moderation", "style", "input_fidelity", "complexity", "svg"), _USELESS),
    **dict.fromkeys(("frame_count", "frame_duration_ms", "markup"), _USELESS),
}


class TokenImagesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks of ``/v1/images/generations``.

    Args:
        prompt: text that pictures are made of.
        model: name of the model; None: the one served.
        n: how often the model answers.
        size: "auto", or "WIDTHxHEIGHT" in pixels.
        output_format: "png", "webp", "jpeg", "tiff"; None: the usual one.
        output_compression: quality of JPEG and WebP, 0 to 100.
        background: of pictures that are transparent somewhere.
        response_format: whether the answer holds pictures or addresses of them.
        sampling: fields of `vllm_mmout.serving.tokens.sampling.HINTS`.

    """

    prompt: str
    model: str | None = None
    n: int = 1
    size: str = AUTO
    output_format: str | None = None
    output_compression: int | None = None
    background: Literal["auto", "transparent", "opaque"] = "auto"
    response_format: Literal["b64_json", "url"] = "b64_json"
    sampling: Mapping[str, Any] = msgspec.field(default_factory=dict)


class SpeechRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks of ``/v1/audio/speech``.

    Args:
        input: the text to be spoken.
        voice: name of a voice; None: none is named.
        model: name of the model; None: the one served.
        instructions: how it is to be spoken.
        response_format: one of `vllm_mmout.serving.tokens.sounds.RESPONSE_FORMATS`.
        sampling: as of `TokenImagesRequest`.

    """

    input: str
    voice: str | None = None
    model: str | None = None
    instructions: str | None = None
    response_format: str = "mp3"
    sampling: Mapping[str, Any] = msgspec.field(default_factory=dict)


def images_request(body: Any) -> TokenImagesRequest:
    """The request of a JSON body for ``/v1/images/generations``.

    Raises:
        ApiError: a field is missing, unknown, wrong, or asks for what there is not (400).

    """
    given = _typed(body, _IMAGES, "/v1/images/generations")
    _needed(given, "prompt", "the text that the picture is made of")
    if not 1 <= given.get("n", 1) <= MOST_IMAGES:
        raise ApiError(400, f"n must be 1 to {MOST_IMAGES}, got {given['n']}", param="n")
    for name in ("stream", "partial_images"):
        if given.get(name):
            raise ApiError(
                400, f"{name} is not to be had of a model that generates tokens: pictures come whole; leave it out",
                param=name,
            )  # fmt: skip
    if given.get("quality", AUTO) not in (AUTO, "standard"):
        value = shown(given["quality"])
        raise ApiError(
            400, f"quality must be auto or standard, got {value}: this model has one quality", param="quality"
        )
    check_formats(given)
    return _made(TokenImagesRequest, given)


def speech_request(body: Any) -> SpeechRequest:
    """The request of a JSON body for ``/v1/audio/speech``.

    Raises:
        ApiError: as of `images_request`.

    """
    rest = dict(body) if isinstance(body, Mapping) else body
    voice = _voice(rest.pop("voice", None)) if isinstance(rest, dict) else None
    given = _typed(rest, _SPEECH, "/v1/audio/speech", "voice")
    _needed(given, "input", "the text to be spoken")
    known = ", ".join(RESPONSE_FORMATS)
    if given.get("response_format", "mp3") not in RESPONSE_FORMATS:
        what = shown(given["response_format"])
        raise ApiError(400, f"response_format must be one of {known}, got {what}", param="response_format")
    if given.get("speed", 1.0) != 1.0:
        raise ApiError(
            400,
            f"speed must be 1, got {given['speed']:g}: this model has one speed; leave it out, and change the speed of"
            " what it gives",
            param="speed",
        )
    if given.get("stream_format", "audio") != "audio":
        what = shown(given["stream_format"])
        raise ApiError(
            400, f"stream_format must be audio, got {what}: a sound comes whole; leave it out", param="stream_format"
        )
    return _made(SpeechRequest, {**given, "voice": voice})


def _typed(body: Any, hints: Mapping[str, Any], route: str, *also: str) -> dict[str, Any]:
    """The values of an object's fields that are given."""
    if not isinstance(body, Mapping):
        raise ApiError(400, f"the body must be a JSON object, got {shown(body)}")
    given = {}
    for name, value in body.items():
        if name not in hints:
            raise _unknown(name, (*hints, *also), route)
        if value is None:
            continue
        if isinstance(value, str):
            check_length(name, value, _TEXTS.get(name))
        if value != "" or name in SAMPLING:
            given[name] = converted(name, value, hints[name], bounded=name != "seed")
    return given


def _unknown(name: str, known: tuple[str, ...], route: str) -> ApiError:
    if name in _REFUSED:
        return ApiError(400, f"{name} is not supported by {route} of this model: {_REFUSED[name]}", param=name)
    near = difflib.get_close_matches(name[:40], known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ApiError(400, f"unknown field {shown(name)}{hint} (known: {', '.join(known)})", param=name[:100])


def _needed(given: Mapping[str, Any], name: str, what: str) -> None:
    if not given.get(name, "").strip():
        raise ApiError(400, f"{name} is missing; send {what}", param=name)


def _voice(value: Any) -> str | None:
    """The name of a voice: a text, or OpenAI's object with an id."""
    name = value.get("id") if isinstance(value, Mapping) and len(value) == 1 else value
    if not isinstance(name, str) and value is not None:
        raise ApiError(400, f'voice must be text or {{"id": text}}, got {shown(value)}', param="voice")
    if name is not None:
        check_length("voice", name, 512)
    return name or None


def _made(kind: type[Kind], given: Mapping[str, Any]) -> Kind:
    """A request of what is given; the rest has its defaults."""
    own = {name: given[name] for name in kind.__struct_fields__ if name in given}
    return kind(**own, sampling={name: given[name] for name in SAMPLING if name in given})
