"""Translate obstore's errors into InputError and BucketError, with a remedy.

obstore's messages contain the requested URL, which may carry a signature. Of such a message only three facts are shown:
the HTTP status, the server's error code and, if no server answered, the reason of the failed connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from vllm_mmout.errors import BucketError, InputError, MMOutError
from vllm_mmout.geo.raster.remote.fetch_options import RETRIES, TIMEOUT, FetchOptions

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.remote.buckets.bucket_address import FileAddress

_NO_CREDENTIALS = ("169.254.", "metadata.google.internal", "Account must be specified")
"""Texts that occur in obstore's error messages if credentials are missing.

The first two texts are addresses of metadata services, which obstore asks for credentials if no credentials are set.
"""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_MAY_PASS = (408, 429)
_DENIED = ("PermissionDeniedError", "UnauthenticatedError")
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_SERVICE_ACCOUNT to a service account's file, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_SKIP_SIGNATURE=true",
    "file": "change the rights of the file",
}
_DONE = {"read": "fetched", "write": "written", "list": "listed"}
_ADDRESS = re.compile(r"\w+://\S+")


@contextmanager
def errors_of(place: FileAddress, kind: type[MMOutError] = InputError, *, verb: str = "read") -> Iterator[None]:
    """Convert errors that obstore raises in the ``with`` block to InputError or BucketError.

    obstore's errors become InputError if ``kind`` is InputError, else BucketError. The new message names the file
    ``place``. obstore's own error is not kept as the cause, since it may contain secrets. ``verb`` is "read", "write"
    or "list".
    """
    try:
        yield
    except MMOutError:
        raise
    except Exception as error:
        from_obstore = type(error).__module__.startswith("obstore") or isinstance(error, OSError | ValueError)
        if not from_obstore:
            raise
        message, status = _message(place, error, verb), _status(error)
    else:
        return
    if kind is InputError:
        raise InputError(f"{place.name}: {message}") from None
    # The OSError as cause marks an error that is not the client's fault.
    raise BucketError(f"{place.name}: {message}", status=status) from OSError(message)


def status_of(error: Exception) -> int:
    """Return the HTTP status that the message of an error contains, or 0."""
    match = re.search(r"status code: ([0-9]{3})", str(error))
    return int(match[1]) if match else 0


def is_bucket_missing(error: Exception) -> bool:
    """Return whether an error means that the whole bucket is missing, not only an object in it."""
    return _code(error) in _NO_BUCKET


def _code(error: Exception) -> str:
    """Return the server's error code, such as "NoSuchBucket", from the message of an error, or ""."""
    match = re.search(r"<Code>(\w{1,60})</Code>", str(error))
    return match[1] if match else ""


def _status(error: Exception) -> int:
    """Return the HTTP status that an error's type implies (403 or 404), or else the status in the error's message.

    Return 0 if the message contains no status.
    """
    if type(error).__name__ in _DENIED:
        return int(HTTPStatus.FORBIDDEN)
    return int(HTTPStatus.NOT_FOUND) if isinstance(error, FileNotFoundError) else status_of(error)


def _message(place: FileAddress, error: Exception, verb: str) -> str:
    """Return a message that tells the user why the obstore library failed, and how to solve the problem."""
    text, kind, status = str(error), type(error).__name__, status_of(error)
    code = _code(error)
    answer = f"the server answered {status}{' ' * bool(code)}{code}" if status else ""
    if isinstance(error, FileNotFoundError) or status == HTTPStatus.NOT_FOUND:
        missing = f"bucket {place.bucket!r}" if is_bucket_missing(error) else "such object"
        return f"there is no {missing}; check the address"
    if kind == "PreconditionError":
        return "it was changed in its bucket while it was read; send it again"
    if kind in _DENIED:
        return f"{answer or 'access is denied'}; ask for the right to {verb} it, or {_CREDENTIALS[place.scheme]}"
    if any(sign in text for sign in _NO_CREDENTIALS):
        return f"the environment has no credentials for it; {_CREDENTIALS[place.scheme]}"
    if 400 <= status < 500 and status not in _MAY_PASS:
        return f"it cannot be {_DONE[verb]}: {answer}; check whether the bucket allows it, or choose another bucket"
    options = FetchOptions.from_environment()
    return (
        f"it cannot be {_DONE[verb]}: {answer or _without_addresses(text)}; try again later, or raise {RETRIES}"
        f" ({options.retries}) or {TIMEOUT} ({options.timeout:g} s)"
    )


def _without_addresses(text: str) -> str:
    """Remove URLs from the first line of obstore's message, since they may hold secrets. Return 200 characters at most.

    Return "the connection failed" if nothing is left.
    """
    first = _ADDRESS.sub("...", text.partition("\n")[0]).strip()
    return first.rpartition(" - ")[2][:200] or "the connection failed"
