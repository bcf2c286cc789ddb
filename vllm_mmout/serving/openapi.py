"""What the description of the server (``/openapi.json``) says of our routes."""

from __future__ import annotations

from typing import Any, Final

from vllm_mmout.serving.tokens import described as tokens

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
# Its own routes answer so where a body is not even text.
_VLLMS_ERROR: Final = {
    "anyOf": [_ERROR, {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}}]
}
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
                    "partial": {"type": "boolean"},
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
    **tokens.USERS,
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
    "location": {**_NUMBERS, "minItems": 2, "maxItems": 2, "description": "latitude, longitude"},
    "dates": {"type": "array", "items": {"type": "string", "format": "date"}},
    "means": _NUMBERS,
    "stds": _NUMBERS,
    "tile": {"type": "integer", "minimum": 1},
    "overlap": {"type": "integer", "minimum": 0},
    "blend": {"type": "string", "enum": ["cosine", "linear", "none"]},
    "simplify": {"type": "number", "minimum": 0},
}
"""Options of requests, those of `OutputParams`."""

JSON: Final = "application/json"
_BODIES: Final = {"form": "multipart/form-data", "texts": "application/x-www-form-urlencoded", "json": JSON}
_KEPT: Final = {name: COMMON[name] for name in ("output_format", "output_compression", "background")}
_BINARY: Final = {"type": "string", "format": "binary"}
_FILES: Final = {"type": "string", "contentMediaType": "application/octet-stream", "format": "binary"}
_NAMED: Final = {"type": "string", "description": "http(s), data or file URL."}


def fields_of(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """An object of just these fields."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def body_of(**schemas: dict[str, Any]) -> dict[str, Any]:
    """A body in one of several media types."""
    content = {_BODIES[name]: {"schema": schema} for name, schema in schemas.items()}
    return {"required": True, "content": content}


def responses_of(good: dict[str, Any], *statuses: int) -> dict[str, Any]:
    """The answers that a route gives: a good one, those errors, and what is not the client's fault."""
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
    media_type: {"schema": _BINARY}
    for media_type in (
        "image/png", "image/webp", "image/jpeg", "image/tiff", "application/x-npz", "application/geo+json",
        "application/octet-stream",
    )
}  # fmt: skip
_ANSWER: Final = {
    "description": "The results; with a header Accept of their media type the bytes alone.",
    "content": {
        JSON: {"schema": _IMAGES},
        "text/event-stream": {},  # a schema would be one of the text, or of each event: generators differ
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
        "properties": {"image_url": _NAMED},
        "required": ["image_url"],
        "additionalProperties": False,
    },
}
_NOT_IN_VARIATIONS: Final = ("prompt", "stream", "partial_images")

FIELDS: Final = {"prompt": {"type": "string"}, **COMMON, **OPTIONS}
_FEWER: Final = {name: schema for name, schema in FIELDS.items() if name not in _NOT_IN_VARIATIONS}

EDITS: Final = {
    "requestBody": body_of(
        form=fields_of({"image": IMAGE, **FIELDS}, "image"),
        texts=fields_of({"image": ADDRESSES, **FIELDS}, "image"),
        json=fields_of({"image": ADDRESSES, "images": OPENAIS, **FIELDS}),
    ),
    "responses": responses_of(_ANSWER, *_ALL),
}
VARIATIONS: Final = {
    "requestBody": body_of(
        form=fields_of({"image": IMAGE, **_FEWER}, "image"), texts=fields_of({"image": ADDRESSES, **_FEWER}, "image")
    ),
    "responses": responses_of(_ANSWER, *_ALL),
}
_PROMPT: Final = {"prompt": {"type": "string", "minLength": 1}}
GENERATIONS: Final = {
    "requestBody": body_of(
        json={
            "anyOf": [
                fields_of({**FIELDS, **_PROMPT}, "prompt"),
                fields_of({**tokens.IMAGES, **_PROMPT}, "prompt"),
            ]
        }
    ),
    "responses": responses_of(_ANSWER, *_ALL, 422),
}
SPEECH: Final = {
    "requestBody": body_of(json=fields_of(tokens.SPEECH, "input")),
    "responses": responses_of(
        {
            "description": "The sound as a file; where the model ended inside it there is a header X-MMOut-Partial.",
            "content": {media_type: {"schema": _BINARY} for media_type in tokens.SOUNDS},
        },
        *BODY,
        422,
    ),
}
RESULTS: Final = {
    "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
    "responses": responses_of(
        {"description": "The bytes of the result.", "content": {**MEDIA, JSON: {"schema": {}}}}, 401, 404
    ),
}
POOLING: Final = {
    "requestBody": body_of(
        json={
            "type": "object",
            "description": "With data, input of the model's mapper and the options below; without, as vLLM.",
            "properties": {"model": COMMON["model"], "data": {}, "user": COMMON["user"], **_KEPT, **OPTIONS},
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
