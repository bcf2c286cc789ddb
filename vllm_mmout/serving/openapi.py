"""What the description of the server (``/openapi.json``) says of our routes."""

from __future__ import annotations

from typing import Any, Final

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
_USAGE: Final = {
    "type": "object",
    "required": ["input_tokens", "output_tokens", "total_tokens"],
    "properties": {name: {"type": "integer"} for name in ("input_tokens", "output_tokens", "total_tokens")},
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
                },
            },
        },
        "background": {"type": ["string", "null"]},
        "output_format": {"type": ["string", "null"]},
        "quality": {"type": ["string", "null"]},
        "size": {"type": ["string", "null"]},
        "usage": _USAGE,
    },
}
_NUMBERS: Final = {"type": "array", "items": {"type": "number"}}
_WHOLES: Final = {"type": "array", "items": {"type": "integer"}}

COMMON: Final[dict[str, Any]] = {
    "model": {"type": "string", "description": "Served name; the server's model by default."},
    "n": {"type": "integer", "enum": [1], "description": "A model that answers in one forward gives one answer."},
    "size": {"type": "string", "enum": ["auto"], "description": "The answer has the size of the input."},
    "quality": {"type": "string", "enum": ["auto", "standard"]},
    "background": {"type": "string", "enum": ["auto", "transparent", "opaque"]},
    "output_format": {"type": "string", "enum": ["png", "webp", "jpeg", "tiff", "npz", "json"]},
    "output_compression": {"type": "integer", "minimum": 0, "maximum": 100},
    "response_format": {"type": "string", "enum": ["b64_json", "url"]},
    "stream": {"type": "boolean"},
    "partial_images": {"type": "integer", "minimum": 0, "maximum": 3},
    "user": {"type": "string", "maxLength": 512},
}
"""Fields of OpenAI's interface."""

OPTIONS: Final[dict[str, Any]] = {
    "processor": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "output": {"type": "string", "description": "What the processor returns: classes, probabilities, ..."},
    "bands": {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}},
    "indices": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "nodata": {"type": "number"},
    "scale": {"anyOf": [{"type": "number"}, _NUMBERS]},
    "offset": {"anyOf": [{"type": "number"}, _NUMBERS]},
    "window": {**_WHOLES, "minItems": 4, "maxItems": 4, "description": "row, column, height, width"},
    "bbox": {**_NUMBERS, "minItems": 4, "maxItems": 4, "description": "west, south, east, north"},
    "bbox_crs": {"type": "string"},
    "resampling": {"type": "string", "enum": ["nearest", "bilinear"]},
    "tile": {"type": "integer", "minimum": 1},
    "overlap": {"type": "integer", "minimum": 0},
    "blend": {"type": "string", "enum": ["cosine", "linear", "none"]},
    "simplify": {"type": "number", "minimum": 0},
}
"""Options of requests, those of `OutputParams`."""

_KEPT: Final = {name: COMMON[name] for name in ("output_format", "output_compression", "background")}
_FILES: Final = {"type": "string", "contentMediaType": "application/octet-stream", "format": "binary"}
_NAMED: Final = {"type": "string", "description": "http(s), data or file URL."}


def _body(properties: dict[str, Any], required: list[str], *media_types: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"required": True, "content": {media_type: {"schema": schema} for media_type in media_types}}


def _responses(good: dict[str, Any], *statuses: int) -> dict[str, Any]:
    """The answers that a route gives: a good one, and those errors."""
    errors = {401: "No key, or another one than --api-key.", 400: "The request cannot be honoured.", **_STATUSES}
    content = {status: _UNAUTHORIZED if status == 401 else _ERROR for status in statuses}
    return {
        "200": good,
        **{
            str(status): {"description": errors[status], "content": {"application/json": {"schema": schema}}}
            for status, schema in content.items()
        },
    }


_STATUSES: Final = {
    404: "There is no such model or result.",
    406: "The answer cannot be what the header Accept asks for.",
    413: "The body is larger than --mmout-max-upload.",
    415: "The body is of another content type.",
    429: "As many requests as --mmout-max-waiting are being served; the header Retry-After says when to come back.",
}
_MEDIA: Final = {
    media_type: {"schema": {"type": "string", "format": "binary"}}
    for media_type in (
        "image/png", "image/webp", "image/jpeg", "image/tiff", "application/x-npz", "application/geo+json",
    )
}  # fmt: skip
_ANSWER: Final = {
    "description": "The results; with a header Accept of their media type the bytes alone.",
    "content": {
        "application/json": {"schema": _IMAGES},
        "text/event-stream": {"schema": {"type": "string"}},
        **_MEDIA,
    },
}
_ALL: Final = (400, 401, 404, 406, 413, 415, 429)

_IMAGE: Final = {
    "description": "Files, or URLs; several are one input of several files, for models of rasters.",
    "anyOf": [_FILES, _NAMED, {"type": "array", "items": {"anyOf": [_FILES, _NAMED]}}],
}
_NOT_IN_VARIATIONS: Final = ("stream", "partial_images")

EDITS: Final = {
    "requestBody": _body(
        {"image": _IMAGE, "prompt": {"type": "string"}, **COMMON, **OPTIONS},
        ["image"],
        "multipart/form-data",
        "application/json",
    ),
    "responses": _responses(_ANSWER, *_ALL),
}
VARIATIONS: Final = {
    "requestBody": _body(
        {
            "image": _IMAGE,
            **{name: schema for name, schema in COMMON.items() if name not in _NOT_IN_VARIATIONS},
            **OPTIONS,
        },
        ["image"],
        "multipart/form-data",
    ),
    "responses": _responses(_ANSWER, *_ALL),
}
GENERATIONS: Final = {
    "requestBody": _body(
        {"prompt": {"type": "string", "minLength": 1}, **COMMON, **OPTIONS}, ["prompt"], "application/json"
    ),
    "responses": _responses(_ANSWER, *_ALL),
}
RESULTS: Final = {
    "responses": _responses(
        {"description": "The bytes of the result.", "content": {**_MEDIA, "application/json": {"schema": {}}}}, 401, 404
    )
}
POOLING: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": "With data, input of the model's mapper and the options below; without, as vLLM.",
                    "properties": {"model": COMMON["model"], "data": {}, "user": COMMON["user"], **_KEPT, **OPTIONS},
                }
            }
        },
    },
    "responses": _responses(
        {
            "description": "The decoded result, or what vLLM answers.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        *(400, 401, 404, 413, 415, 429),
    ),
}
