"""Convert exceptions to the error responses that clients receive, in OpenAI's format."""

from __future__ import annotations

import errno
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from logging import INFO, WARNING
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from vllm_mmout.errors import AbortedError, BucketError, InputError, MMOutError, OptionError, SaveError, message_of
from vllm_mmout.log import logger

# vLLM's names of error types by HTTP status. A status without one gets the phrase of HTTP.
_TYPES = {
    400: "BadRequestError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    406: "NotAcceptableError",
    408: "RequestTimeoutError",
    409: "ConflictError",
    410: "GoneError",
    413: "PayloadTooLargeError",
    415: "UnsupportedMediaTypeError",
    416: "RangeNotSatisfiableError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    507: "InsufficientStorageError",
}
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# Class names instead of classes, because some releases of vLLM lack some of them. The nearest base class counts.
_STATUSES = {
    "VLLMValidationError": 400,
    "VLLMNotFoundError": 404,
    "VLLMUnprocessableEntityError": 422,
    "VLLMClientError": 400,
    "RetryableRequestError": 503,
    "GracefulHTTPError": 503,
}
_BUCKET_STATUSES = {403: 403, 404: 404}
"""Maps the HTTP status of a bucket's error response to the status of our response. Other statuses become 502."""
_LONGEST = 4000
"""Maximum number of characters of an error message. Longer messages are cut, as they may quote text from the client."""


class ApiError(Exception):
    """Error that is sent to the client. The message must not contain file paths or host names of the server.

    By default the ``kind`` of the error is vLLM's name for the status, and ``code`` is the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = kind or _TYPES.get(status) or phrase_of(status)
        self.param = param
        self.code = status if code is None else code
        self.headers = headers

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.message), self.__dict__


def api_error(error: BaseException, request_id: str | None = None) -> ApiError:
    """Convert an exception to the error that is sent to the client.

    An exception that is not the client's fault is logged with its traceback. The client receives only its type.
    """
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, Exception):  # nobody waits for the answer after a cancellation or an interrupt
        raise error
    if isinstance(error, EngineGenerateError) and isinstance(error.__cause__, Exception):
        return api_error(error.__cause__, request_id)
    known = _of_full_disk(error) or _of_client(error) or _of_vllm(error)
    if known is not None:
        return known
    named = "" if request_id is None else f" (request {request_id})"
    if isinstance(error, EngineDeadError):
        logger.error("the engine has died%s", named)
        return ApiError(503, "the engine of this server has died; it must be started again")
    if isinstance(error, AbortedError):
        return ApiError(503, f"the request was aborted before its result was there{named}; send it again")
    logger.error("a request failed%s", named, exc_info=error)
    what = type(error).__name__ if isinstance(error, MMOutError) else "an internal error"
    return ApiError(500, f"the request failed with {what}{named}; the server's log says more")


@contextmanager
def client_errors(request_id: str | None = None) -> Iterator[None]:
    """Convert exceptions in the ``with`` block to ApiError, with the original exception as the cause."""
    try:
        yield
    except ApiError:
        raise
    except Exception as error:
        raise api_error(error, request_id) from error


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the JSON body of an error response, in OpenAI's format."""
    param = None if error.param is None else _plain(error.param)
    return {"error": {"message": _plain(error.message), "type": error.type, "param": param, "code": error.code}}


def status_of(kind: str) -> int:
    """Return the HTTP status of an error type, such as 404 for "NotFoundError". Unknown types have the status 500."""
    return next((status for status, name in _TYPES.items() if name == kind), 500)


def error_response(error: BaseException, request_id: str | None = None) -> JSONResponse:
    """Return the response for a request that failed with an exception, and log the failure."""
    known = api_error(error, request_id)
    if request_id is not None:
        log_failure(request_id, known.status, known.message)
    return JSONResponse(error_body(known), known.status, known.headers)


def log_failure(name: str, status: int, reason: str) -> None:
    """Log the status and reason of a failed request or job on one line."""
    line = "".join(sign if sign.isprintable() else " " for sign in _plain(reason))
    logger.log(WARNING if status >= 500 else INFO, "%s failed with %d: %s", name, status, line)


def is_full(error: BaseException) -> bool:
    """Return whether an error means that a disk is full."""
    return (isinstance(error, OSError) and error.errno in _FULL) or (
        isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    )


def _of_full_disk(error: Exception) -> ApiError | None:
    """Return an ApiError (507) and log the folder if a full disk caused the error. Otherwise return None."""
    found: BaseException | None = error
    while found is not None and not is_full(found):
        found = found.__cause__
    if found is None:
        return None
    folder = getattr(found, "filename", None)
    logger.error("no room is left on a disk%s: %s", f" ({folder})" if folder else "", message_of(error))
    place = "results and unfinished work, which --mmout-results-dir names"
    if folder == tempfile.gettempdir():
        place = "files that are sent, which TMPDIR names"
    return ApiError(
        507,
        f"the server's disk is full: no room is left in its folder for {place}; have its operator make room, or name"
        " another folder, and send the request again",
    )


def _of_client(error: Exception) -> ApiError | None:
    """Convert an exception that a faulty request caused to an ApiError. Return None for other exceptions."""
    if isinstance(error, InputError):
        return ApiError(400, message_of(error), param=error.param or "image")
    if isinstance(error, OptionError):
        return ApiError(400, message_of(error), param=error.param)
    if isinstance(error, BucketError):
        return ApiError(_BUCKET_STATUSES.get(error.status, 502), message_of(error), param="path")
    # An OSError is not the client's fault, and its message has the path.
    if isinstance(error, SaveError) and not isinstance(error.__cause__, OSError):
        return ApiError(400, message_of(error), param=error.param or "output_format")
    if isinstance(error, ClientDisconnect):
        return ApiError(400, "the connection was closed before the request was complete")
    return None


def _of_vllm(error: Exception) -> ApiError | None:
    """Convert an exception of vLLM or starlette to an ApiError. Return None for other exceptions."""
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=dict(error.headers or {}) or None)
    for base in type(error).__mro__:
        status = _STATUSES.get(base.__name__)
        if status is not None:
            own = getattr(error, "http_status", status)
            # Their __str__ appends the parameter, which the response has in a separate field.
            return ApiError(int(own), Exception.__str__(error), param=getattr(error, "parameter", None))
    return None


def _plain(text: str) -> str:
    """Make an error message safe to send: cut to `_LONGEST` characters, and valid UTF-8."""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return shown.encode(errors="replace").decode()


def phrase_of(status: int) -> str:
    """Return the reason phrase of an HTTP status, such as "Not Found"."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
