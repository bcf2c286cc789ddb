"""What the description of the server says of the routes of jobs."""

from __future__ import annotations

from typing import Any, Final

from vllm_mmout.serving.openapi import (
    ADDRESSES,
    BODY,
    FIELDS,
    IMAGE,
    JSON,
    MEDIA,
    OPENAIS,
    body_of,
    fields_of,
    responses_of,
)

_WHOLE: Final = {"type": "integer"}
_MAYBE_WHOLE: Final = {"type": ["integer", "null"]}
_MAYBE_TEXT: Final = {"type": ["string", "null"]}
_CLASS: Final = {
    "type": "object",
    "required": ["id", "name", "color", "pixels", "share", "area_m2"],
    "properties": {
        "id": _WHOLE,
        "name": _MAYBE_TEXT,
        "color": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
        "pixels": _WHOLE,
        "share": {"type": "number"},
        "area_m2": {"type": ["number", "null"]},
    },
}
_OUTPUT: Final = {
    "type": "object",
    "required": ["processor", "output_format", "media_type", "bytes", "size", "classes"],
    "properties": {
        "processor": {"type": "string"},
        "output_format": {"type": "string"},
        "media_type": {"type": "string"},
        "bytes": _WHOLE,
        "size": _MAYBE_TEXT,
        "classes": {"anyOf": [{"type": "array", "items": _CLASS}, {"type": "null"}]},
    },
}
_SCENE: Final = {
    "type": "object",
    "required": ["id", "object", "model", "name", "status", "progress", "tiles", "created_at", "outputs", "error"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "scene"},
        "model": {"type": "string"},
        "name": {"type": "string"},
        "status": {"enum": ["queued", "in_progress", "completed", "failed"]},
        "progress": {"type": "integer", "minimum": 0, "maximum": 100},
        "tiles": {
            "anyOf": [{"type": "object", "properties": {"done": _WHOLE, "total": _WHOLE}}, {"type": "null"}],
        },
        "created_at": _WHOLE,
        "started_at": _MAYBE_WHOLE,
        "completed_at": _MAYBE_WHOLE,
        "expires_at": _MAYBE_WHOLE,
        "outputs": {"type": "array", "items": _OUTPUT},
        "error": {
            "anyOf": [
                {"type": "object", "properties": {"code": {"type": "string"}, "message": {"type": "string"}}},
                {"type": "null"},
            ]
        },
    },
}
_LISTED: Final = {
    "type": "object",
    "required": ["object", "data", "first_id", "last_id", "has_more"],
    "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": _SCENE},
        "first_id": _MAYBE_TEXT,
        "last_id": _MAYBE_TEXT,
        "has_more": {"type": "boolean"},
    },
}
_SEEN: Final = {
    "type": "object",
    "required": ["width", "height", "shown", "dtype", "bands", "nodata", "usual", "data_dtype", "data"],
    "properties": {
        "width": _WHOLE,
        "height": _WHOLE,
        "shown": {"type": "object", "properties": {"width": _WHOLE, "height": _WHOLE}},
        "dtype": {"type": "string"},
        "bands": {"type": "array", "items": {"type": "string"}},
        "nodata": {"type": ["number", "null"]},
        "usual": {"type": "array", "items": _WHOLE},
        "data_dtype": {"type": "string"},
        "data": {"type": "string", "contentEncoding": "base64"},
    },
}
_ID: Final = {"name": "scene_id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_FIELDS: Final = {
    name: schema for name, schema in FIELDS.items() if name not in {"stream", "partial_images", "response_format"}
}
_REQUEST: Final = body_of(
    form=fields_of({"image": IMAGE, **_FIELDS}, "image"),
    texts=fields_of({"image": ADDRESSES, **_FIELDS}, "image"),
    json=fields_of({"image": ADDRESSES, "images": OPENAIS, **_FIELDS}),
)


def _query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": schema}}}


_PROCESSOR: Final = _query("processor", {"type": "string"})
_PLACES: Final = [_query(name, {"type": "integer", "minimum": 0}, required=True) for name in ("row", "col")]
_GEOJSON: Final[dict[str, Any]] = {"application/geo+json": {"schema": {}}}
_BYTES: Final = {"content": {**MEDIA, **_GEOJSON, JSON: {"schema": {}}}}
_PARTS: Final[dict[str, Any]] = {media_type: {} for media_type in _BYTES["content"]}  # a part of JSON is none

CREATE: Final = {"requestBody": _REQUEST, "responses": responses_of(_answer("The job.", _SCENE), *BODY)}
PREVIEW: Final = {
    "requestBody": _REQUEST,
    "responses": responses_of(_answer("The input at reduced size.", _SEEN), *(set(BODY) - {404})),
}
LIST: Final = {
    "parameters": [
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        _query("after", {"type": "string"}),
        _query("order", {"type": "string", "enum": ["asc", "desc"]}),
    ],
    "responses": responses_of(_answer("Some jobs, the newest first.", _LISTED), 400, 401, 404),
}
GET: Final = {"parameters": [_ID], "responses": responses_of(_answer("The job.", _SCENE), 401, 404)}
DELETE: Final = {
    "parameters": [_ID],
    "responses": responses_of(_answer("The job is ended, and forgotten.", {"type": "object"}), 401, 404),
}
CONTENT: Final = {
    "parameters": [
        _ID,
        _query("variant", {"type": "string", "enum": ["result", "preview"]}),
        _PROCESSOR,
        {"name": "Range", "in": "header", "required": False, "schema": {"type": "string"}},
    ],
    "responses": responses_of({"description": "The bytes.", **_BYTES}, 400, 401, 404, 409, 416)
    | {"206": {"description": "The bytes that the header Range asks for.", "content": _PARTS}},
}
PIXEL: Final = {
    "parameters": [_ID, *_PLACES, _PROCESSOR],
    "responses": responses_of(_answer("The values of the pixel.", {"type": "object"}), 400, 401, 404, 409),
}
