"""Convert exceptions to the error documents of OGC API Processes, which follow RFC 7807."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse

from vllm_mmout.serving.errors import api_error, error_body, log_failure, phrase_of
from vllm_mmout.serving.request.request_ids import id_header, request_id

if TYPE_CHECKING:
    from starlette.requests import Request

_URI: Final = "http://www.opengis.net/def/exceptions/ogcapi-processes-1/1.0"
NO_SUCH_PROCESS: Final = f"{_URI}/no-such-process"
NO_SUCH_JOB: Final = f"{_URI}/no-such-job"
RESULT_NOT_READY: Final = f"{_URI}/result-not-ready"
_TYPES_BY_STATUS: Final = {400: "InvalidParameterValue"}
"""Exception type by HTTP status, for errors that do not have a type of OGC API Processes.

Errors with any other status get the type "about:blank".
"""


def exception_response(request: Request, error: Exception) -> JSONResponse:
    """Return the response for a request that failed with an exception, and log the failure."""
    name = request_id(request, "ogc")
    known = api_error(error, name)
    log_failure(name, known.status, known.message)
    document = {
        "type": known.type if known.type.startswith(_URI) else _TYPES_BY_STATUS.get(known.status, "about:blank"),
        "title": phrase_of(known.status),
        "status": known.status,
        "detail": error_body(known)["error"]["message"],
    }
    return JSONResponse(document, known.status, {**(known.headers or {}), **id_header(request)})
