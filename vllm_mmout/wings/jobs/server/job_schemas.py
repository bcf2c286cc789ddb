"""Define the fields of job requests, and the OpenAPI descriptions of the job routes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from vllm_mmout.serving.openapi import ADDRESSES, BODY, IMAGE, JSON, MEDIA, OPENAIS, WARNINGS, body_of, responses_of
from vllm_mmout.serving.request.fields import EDITS
from vllm_mmout.wings.jobs.server.input_preview import InputPreview
from vllm_mmout.wings.jobs.server.job import OutputRow, SceneError

_SCENES: Final = "/v1/scenes"
_BY_ID: Final = "a job runs in the background; poll it and fetch its result by its id"
_NOT_WRITTEN: Final = "a client cannot choose where the server writes the result of a job; fetch it by its id"
SCENES: Final = EDITS.without(("stream", "partial_images", "response_format"), _BY_ID, path=_SCENES).without(
    ("path",), _NOT_WRITTEN, path=_SCENES, apart=EDITS.apart
)
"""Fields of a request to ``/v1/scenes``, which starts a job. They are the fields of ``/v1/images/edits`` without
``stream``, ``partial_images``, ``response_format`` and ``path``."""


def object_of(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object. Each keyword argument is a required property and the property's schema."""
    return {"type": "object", "required": list(properties), "properties": properties}


def written(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of the msgspec Struct ``kind``, written out without references to other schemas."""
    (root,), components = msgspec.json.schema_components([kind], ref_template="{name}")

    def resolved(part: Any) -> Any:
        if isinstance(part, list):
            return [resolved(item) for item in part]
        if not isinstance(part, dict):
            return part
        return (
            resolved(components[part["$ref"]])
            if "$ref" in part
            else {name: resolved(item) for name, item in part.items()}
        )

    schema: dict[str, Any] = resolved(root)
    return schema


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema that also accepts null."""
    return {"anyOf": [schema, {"type": "null"}]}


_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_SCENE: Final = object_of(
    id=_TEXT,
    object={"const": "scene"},
    model=_TEXT,
    name=_TEXT,
    status={"enum": ["queued", "in_progress", "completed", "failed"]},
    progress={"type": "integer", "minimum": 0, "maximum": 100},
    tiles=or_null(object_of(done=_WHOLE, total=_WHOLE)),
    created_at=_WHOLE,
    **dict.fromkeys(("started_at", "completed_at", "expires_at"), or_null(_WHOLE)),
    outputs={"type": "array", "items": written(OutputRow)},
    error=or_null(written(SceneError)),
    warnings=WARNINGS,
)


def list_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of one page of a list of jobs. ``job`` is the schema of a single job."""
    return object_of(
        object={"const": "list"},
        data={"type": "array", "items": job},
        first_id=or_null(_TEXT),
        last_id=or_null(_TEXT),
        has_more={"type": "boolean"},
    )


def id_in(parameter: str) -> dict[str, Any]:
    """Return the OpenAPI description of the path parameter that holds a job's id."""
    return {"name": parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def content_of(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the OpenAPI description of a route that sends a job's result, or a byte range of the result."""
    return {
        "parameters": [*parameters, _RANGE],
        "responses": responses_of({"description": "The bytes.", **_BYTES}, 400, 401, 404, 409, 416)
        | {"206": {"description": "The bytes that the header Range asks for.", "content": _PARTS}},
    }


_ID: Final = id_in("scene_id")
_REQUEST: Final = body_of(
    form=SCENES.schema("image", image=IMAGE),
    texts=SCENES.schema("image", image=ADDRESSES),
    json=SCENES.schema(image=ADDRESSES, images=OPENAIS),
)


def query(name: str, schema: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    """Return the OpenAPI description of a query parameter."""
    return {"name": name, "in": "query", "required": required, "schema": schema}


def answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a JSON response."""
    return {"description": description, "content": {JSON: {"schema": schema}}}


_CHOICE: Final = [query("processor", {"type": "string"}), query("day", {"type": "string", "format": "date"})]
"""Query parameters that choose one of several results of a job."""
_PLACES: Final = [query(name, {"type": "integer", "minimum": 0}, required=True) for name in ("row", "col")]
_GEOJSON: Final[dict[str, Any]] = {"application/geo+json": {"schema": {}}}
_BYTES: Final = {"content": {**MEDIA, **_GEOJSON, JSON: {"schema": {}}}}
_PARTS: Final[dict[str, Any]] = {media_type: {} for media_type in _BYTES["content"]}  # a byte range of JSON is not JSON

PAGE: Final = [
    query("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
    query("after", {"type": "string"}),
    query("order", {"type": "string", "enum": ["asc", "desc"]}),
]
"""Query parameters of a route that lists jobs."""
_RANGE: Final = {"name": "Range", "in": "header", "required": False, "schema": {"type": "string"}}

CREATE: Final = {"requestBody": _REQUEST, "responses": responses_of(answer("The job.", _SCENE), *BODY)}
PREVIEW: Final = {
    "requestBody": _REQUEST,
    "responses": responses_of(answer("The input at reduced size.", written(InputPreview)), *(set(BODY) - {404})),
}
LIST: Final = {
    "parameters": PAGE,
    "responses": responses_of(answer("One page of jobs, by default the newest first.", list_of(_SCENE)), 400, 401, 404),
}
GET: Final = {"parameters": [_ID], "responses": responses_of(answer("The job.", _SCENE), 401, 404)}
DELETE: Final = {
    "parameters": [_ID],
    "responses": responses_of(answer("The job is cancelled and deleted.", {"type": "object"}), 401, 404),
}
CONTENT: Final = content_of([_ID, query("variant", {"type": "string", "enum": ["result", "preview"]}), *_CHOICE])
FIGURE: Final = {
    "parameters": [_ID, *_CHOICE],
    "responses": responses_of(
        {"description": "The figure.", "content": {"image/png": MEDIA["image/png"]}}, 400, 401, 404, 409
    ),
}
PIXEL: Final = {
    "parameters": [_ID, *_PLACES, *_CHOICE],
    "responses": responses_of(answer("The values of the pixel.", {"type": "object"}), 400, 401, 404, 409),
}
