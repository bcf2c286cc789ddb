"""Define the OpenAPI descriptions of the video routes."""

from __future__ import annotations

from typing import Any, Final

from vllm_mmout.serving.openapi import BODY, body_of, responses_of
from vllm_mmout.wings.jobs.server.job import SceneError
from vllm_mmout.wings.jobs.server.job_schemas import (
    PAGE,
    answer,
    content_of,
    id_in,
    list_of,
    object_of,
    or_null,
    query,
    written,
)
from vllm_mmout.wings.jobs.server.video_request import REFERENCE, VIDEOS

_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_VIDEO: Final = object_of(
    id=_TEXT,
    object={"const": "video"},
    model=_TEXT,
    status={"enum": ["queued", "in_progress", "completed", "failed"]},
    progress={"type": "integer", "minimum": 0, "maximum": 100},
    created_at=_WHOLE,
    **dict.fromkeys(("completed_at", "expires_at"), or_null(_WHOLE)),
    prompt=_TEXT,
    size=_TEXT,
    seconds=_TEXT,
    remixed_from_video_id={"type": "null"},
    error=or_null(written(SceneError)),
)
_ADDRESS: Final = {"type": "string", "description": "http(s), data or file URL of an image that the video starts from."}
_FILE: Final = {"type": "string", "contentMediaType": "application/octet-stream", "format": "binary"}
_OBJECT: Final = {
    "type": "object",
    "properties": {"image_url": _ADDRESS},
    "required": ["image_url"],
    "additionalProperties": False,
}


def _fields(reference: dict[str, Any]) -> dict[str, Any]:
    return VIDEOS.schema(**{REFERENCE: reference})


_ID: Final = id_in("video_id")
CREATE: Final = {
    "requestBody": body_of(
        form=_fields({"anyOf": [_FILE, _ADDRESS]}),
        texts=_fields(_ADDRESS),
        json=_fields({"anyOf": [_ADDRESS, _OBJECT]}),
    ),
    "responses": responses_of(answer("The video's job.", _VIDEO), *BODY),
}
LIST: Final = {
    "parameters": PAGE,
    "responses": responses_of(
        answer("One page of videos, by default the newest first.", list_of(_VIDEO)), 400, 401, 404
    ),
}
GET: Final = {"parameters": [_ID], "responses": responses_of(answer("The video's job.", _VIDEO), 400, 401, 404)}
DELETE: Final = {
    "parameters": [_ID],
    "responses": responses_of(answer("The job is cancelled and deleted.", {"type": "object"}), 400, 401, 404),
}
CONTENT: Final = content_of([_ID, query("variant", {"type": "string", "enum": ["video", "thumbnail", "spritesheet"]})])
