"""Send the results of a job as data or as URLs. The client chooses the form when it creates the job.

======== =================== ==============================================
response transmission        answer
======== =================== ==============================================
document value or reference  a JSON document with all results
raw      value, one result   the file
raw      value, several      multipart/related, a part for each file
raw      reference alone     204 with a header ``Link`` for each result
raw      both                multipart/related, empty parts for references
======== =================== ==============================================
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

from starlette.responses import Response

from vllm_mmout.serving.errors import ApiError, status_of
from vllm_mmout.serving.response.assumptions_header import warnings_header
from vllm_mmout.serving.response.responses import ClosingResponse, close_entries, parts_response
from vllm_mmout.serving.response.verbatim import Verbatim
from vllm_mmout.wings.jobs.ogc.exceptions import RESULT_NOT_READY
from vllm_mmout.wings.jobs.ogc.links import JSON, RESULTS, header, output_url
from vllm_mmout.wings.jobs.ogc.processes import JSON_FORMATS
from vllm_mmout.wings.jobs.server.job import Delivery
from vllm_mmout.wings.jobs.server.result_responses import PRIVATE, find_stored, send_stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request

    from vllm_mmout.serving.response.responses import Part
    from vllm_mmout.serving.response.result_files import Encoded
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.wings.jobs.server.job import SceneJob, SceneOutput

_NOT_READY: Final = "the job is {status}; its status says when the results are there"


async def send_results(request: Request, job: SceneJob, store: ResultStore) -> Response:
    """Send the results of a job. Raise an ApiError if the job is unfinished or has failed."""
    if job.error is not None:
        raise ApiError(status_of(job.error.code), job.error.message)
    if job.status != "completed":
        raise ApiError(404, _NOT_READY.format(status=job.status), kind=RESULT_NOT_READY, param="jobID")
    delivery = job.delivery or Delivery()
    values = [output for output in job.outputs if output.processor not in delivery.references]
    if not delivery.document and not values:
        return _linked(request, job)
    if not delivery.document and len(job.outputs) == 1:
        response = await send_stored(request, job, job.outputs[0], store, job.outputs[0].stored)
    else:
        entries = await asyncio.to_thread(_opened, values, store)
        build = _document if delivery.document else _multipart
        response = build(request, job, entries)
    response.headers.update(_warnings(job))
    return response


def _linked(request: Request, job: SceneJob) -> Response:
    """Return a response without a body, whose header ``Link`` lists the URLs of all results."""
    links = [
        header(output_url(request, job, output), RESULTS, type=output.media_type, title=output.label)
        for output in job.outputs
    ]
    return Response(status_code=204, headers={"Link": ", ".join(links), **PRIVATE, **_warnings(job)})


def _document(request: Request, job: SceneJob, entries: Mapping[str, Encoded]) -> ClosingResponse:
    """Return all results of a job in OGC's JSON document. Results are sent as data or as URLs.

    ``entries`` maps the labels of the results that are sent as data to their open files.
    """
    parts: list[Part] = []
    for output in job.outputs:
        parts.append(b"," if parts else b"{")
        parts.append(_json(output.label) + b":")
        entry = entries.get(output.label)
        if entry is None:
            parts.append(_json({"href": output_url(request, job, output), "type": output.media_type}))
        elif output.output_format in JSON_FORMATS:
            parts += [b'{"mediaType":' + _json(output.media_type) + b',"value":', Verbatim(entry), b"}"]
        else:
            head = _json({"mediaType": output.media_type, "encoding": "base64"})[:-1]
            parts += [head + b',"value":"', entry, b'"}']
    return parts_response([*parts, b"}"], JSON, as_text=True, headers=PRIVATE)


def _multipart(request: Request, job: SceneJob, entries: Mapping[str, Encoded]) -> ClosingResponse:
    """Return all results of a job as a multipart body (RFC 2387). Results are sent as data or as URLs.

    ``entries`` maps the labels of the results that are sent as data to their open files.
    """
    boundary = uuid4().hex
    parts: list[Part] = []
    for output in job.outputs:
        fields = {"Content-Type": output.media_type, "Content-ID": f"<{quote(output.label)}>"}
        entry = entries.get(output.label)
        if entry is None:
            fields["Content-Location"] = output_url(request, job, output)
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        parts += [f"\r\n--{boundary}\r\n{lines}\r\n".encode(), *([] if entry is None else [entry])]
    parts.append(f"\r\n--{boundary}--\r\n".encode())
    media_type = f'multipart/related; boundary={boundary}; type="{job.outputs[0].media_type}"'
    return parts_response(parts, media_type, as_text=False, headers=PRIVATE)


def _opened(outputs: Sequence[SceneOutput], store: ResultStore) -> dict[str, Encoded]:
    """Open the stored files of results. Return a dict from each result's label to its open file. The call blocks.

    Raise an ApiError (404) if a file was removed.
    """
    entries: dict[str, Encoded] = {}
    try:
        for output in outputs:
            entries[output.label] = find_stored(store, output.stored)
    except BaseException:
        close_entries(entries.values())
        raise
    return entries


def _warnings(job: SceneJob) -> dict[str, str]:
    """Return the response header that lists the assumptions that were made about the job's input."""
    return warnings_header(list(dict.fromkeys(text for output in job.outputs for text in output.assumed)))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
