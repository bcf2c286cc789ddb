"""OpenAPI descriptions of this package's HTTP routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.serving.request.fields import EDITS, GENERATIONS, POOLING, VARIATIONS
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, UNKNOWN

if TYPE_CHECKING:
    from vllm_mmout.serving.extension import ServerExtension

_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["integer", "string", "null"]},
            },
        }
    },
}
_UNAUTHORIZED: Final = {"type": "object", "required": ["error"], "properties": {"error": {}}}
# vLLM's routes answer in the second form if a body is not text.
_VLLMS_ERROR: Final = {
    "anyOf": [_ERROR, {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}}]
}
_USAGE: Final = {
    "type": "object",
    "required": ["input_tokens", "output_tokens", "total_tokens"],
    "properties": {name: {"type": "integer"} for name in ("input_tokens", "output_tokens", "total_tokens")},
}
WARNINGS: Final = {
    "type": "array",
    "items": {"type": "string"},
    "description": "What was assumed about the input, and how to say it otherwise.",
}
_IMAGES: Final = {
    "type": "object",
    "required": ["created", "data"],
    "properties": {
        "created": {"type": "integer"},
        "data": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "b64_json": {"type": "string", "contentEncoding": "base64"},
                    "url": {"type": "string"},
                    "processor": {"type": "string"},
                    "output": {"type": "string"},
                    "day": {"type": "string", "format": "date"},
                    "partial": {"type": "boolean"},
                },
            },
        },
        "background": {"type": ["string", "null"]},
        "output_format": {"type": ["string", "null"]},
        "quality": {"type": ["string", "null"]},
        "size": {"type": ["string", "null"]},
        "usage": _USAGE,
        "warnings": WARNINGS,
    },
}
JSON: Final = "application/json"
_BODIES: Final = {"form": "multipart/form-data", "texts": "application/x-www-form-urlencoded", "json": JSON}
_BINARY: Final = {"type": "string", "format": "binary"}
_FILES: Final = {"type": "string", "contentMediaType": "application/octet-stream", "format": "binary"}
_NAMED: Final = {"type": "string", "description": "http(s), data or file URL."}


def body_of(**schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a route's request body, given a JSON schema for each accepted media type.

    The names of the keyword arguments are keys of `_BODIES`, such as ``form`` and ``json``.
    """
    content = {_BODIES[name]: {"schema": schema} for name, schema in schemas.items()}
    return {"required": True, "content": content}


def responses_of(good: dict[str, Any], *statuses: int) -> dict[str, Any]:
    """Return the OpenAPI responses of a route: ``good`` for status 200, and error responses."""
    return {
        "200": good,
        **{str(status): _error(STATUSES[status], status) for status in statuses},
        "5XX": _error("The request was right and failed all the same; the server's log says more."),
    }


def _error(description: str, status: int | None = None, schema: dict[str, Any] = _ERROR) -> dict[str, Any]:
    schema = _UNAUTHORIZED if status == 401 else schema
    headers = {"headers": _RETRY_AFTER} if status == 429 else {}
    return {"description": description, **headers, "content": {JSON: {"schema": schema}}}


_RETRY_AFTER: Final = {
    "Retry-After": {"required": True, "schema": {"type": "integer"}, "description": "Seconds to wait."}
}
STATUSES: Final = {
    400: "The request cannot be honoured.",
    401: "No key, or another one than --api-key.",
    404: "There is no such model, result or job.",
    406: "The answer cannot be what the header Accept asks for.",
    408: "The next piece of the body did not come within --mmout-receive-timeout.",
    409: "The job is not in a state in which it has what is asked for.",
    413: "The body is larger than --mmout-max-upload.",
    415: "The body is of another content type.",
    416: "The result has no such bytes.",
    422: "The model generated no picture or sound.",
    429: "As many requests as --mmout-max-waiting are being served; the header Retry-After says when to come back.",
}
MEDIA: Final = {
    media_type: {"schema": _BINARY} for media_type in (*MEDIA_TYPES.values(), UNKNOWN) if media_type != JSON
}
_ANSWER: Final = {
    "description": "The results; with a header Accept of their media type the bytes alone.",
    "content": {
        JSON: {"schema": _IMAGES},
        "text/event-stream": {},  # no schema: generators differ in whether it is of the text or of each event
        **MEDIA,
    },
}
BODY: Final = (400, 401, 404, 408, 413, 415, 429)
_ALL: Final = (*BODY, 406)

IMAGE: Final = {
    "description": "Files, or URLs; several are one input of several files, for models of rasters.",
    "anyOf": [_FILES, _NAMED, {"type": "array", "items": {"anyOf": [_FILES, _NAMED]}}],
}
ADDRESSES: Final = {
    "description": "URLs; several are one input of several files, for models of rasters.",
    "anyOf": [_NAMED, {"type": "array", "minItems": 1, "items": _NAMED}],
}
OPENAIS: Final = {
    "type": "array",
    "description": "The same as OpenAI has it; one of the two is needed.",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "type": {"const": "image_url"},
            "image_url": {
                "anyOf": [
                    _NAMED,
                    {
                        "type": "object",
                        "properties": {"url": _NAMED},
                        "required": ["url"],
                        "additionalProperties": False,
                    },
                ]
            },
        },
        "required": ["image_url"],
        "additionalProperties": False,
    },
}
EDITED: Final = {
    "requestBody": body_of(
        form=EDITS.schema("image", image=IMAGE),
        texts=EDITS.schema("image", image=ADDRESSES),
        json=EDITS.schema(image=ADDRESSES, images=OPENAIS),
    ),
    "responses": responses_of(_ANSWER, *_ALL),
}
VARIED: Final = {
    "requestBody": body_of(
        form=VARIATIONS.schema("image", image=IMAGE), texts=VARIATIONS.schema("image", image=ADDRESSES)
    ),
    "responses": responses_of(_ANSWER, *_ALL),
}


def generations(extensions: Sequence[ServerExtension]) -> dict[str, Any]:
    """Return the OpenAPI description of ``/v1/images/generations``, including requests that ``extensions`` accept."""
    others = [dict(extension.generations) for extension in extensions if extension.generations is not None]
    prompt = GENERATIONS.options["prompt"].schema | {"minLength": 1}
    taken = GENERATIONS.schema("prompt", prompt=prompt)
    return {
        "requestBody": body_of(json={"anyOf": [taken, *others]} if others else taken),
        "responses": responses_of(_ANSWER, *_ALL, *([422] if others else [])),
    }


RESULTS: Final = {
    "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
    "responses": responses_of(
        {"description": "The bytes of the result.", "content": {**MEDIA, JSON: {"schema": {}}}}, 401, 404
    ),
}
POOLED: Final = {
    "requestBody": body_of(
        json={
            "type": "object",
            "description": "With data, input of the model's mapper and the options below; without, as vLLM.",
            "properties": {"data": {}, **{name: option.schema for name, option in POOLING.options.items()}},
        }
    ),
    "responses": responses_of(
        {
            "description": "The decoded result, or what vLLM answers.",
            "content": {JSON: {"schema": {"type": "object"}}},
        },
        *BODY,
    )
    | {"400": _error(STATUSES[400], 400, _VLLMS_ERROR)},
}
