"""What goes wrong in buckets, as errors that say what to do.

What obstore says of an error holds the address that was asked, which may be signed: none of it is shown but the status,
the server's name of the fault, and what failed where no server answered.
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
    from vllm_mmout.geo.raster.remote.buckets.stores import Place

_NO_CREDENTIALS = ("169.254.", "metadata.google.internal", "Account must be specified")
"""What obstore says where the environment has none: that the service of a cloud's own machines does not answer."""
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
def errors_of(place: Place, kind: type[MMOutError] = InputError, *, verb: str = "read") -> Iterator[None]:
    """Raise what obstore raises as an InputError, or a BucketError where ``kind`` is SaveError.

    The error has no cause of obstore's, as that may be secret in part.
    """
    try:
        yield
    except MMOutError:
        raise
    except Exception as error:
        own = type(error).__module__.startswith("obstore") or isinstance(error, OSError | ValueError)
        if not own:
            raise
        said, status = _said(place, error, verb), _status(error)
    else:
        return
    if kind is InputError:
        raise InputError(f"{place.name}: {said}") from None
    raise BucketError(f"{place.name}: {said}", status=status) from OSError(said)  # no fault of a client's


def status_of(error: Exception) -> int:
    """The status that a server answered with; 0 where the error is of something else."""
    found = re.search(r"status code: ([0-9]{3})", str(error))
    return int(found[1]) if found else 0


def is_bucket_missing(error: Exception) -> bool:
    """Return whether a server said that the bucket is missing, rather than an object in it."""
    return _code(error) in _NO_BUCKET


def _code(error: Exception) -> str:
    """Return the error code that the server gave, or ""."""
    found = re.search(r"<Code>(\w{1,60})</Code>", str(error))
    return found[1] if found else ""


def _status(error: Exception) -> int:
    """Return the HTTP status of an error, also where the message of obstore leaves it out."""
    if type(error).__name__ in _DENIED:
        return int(HTTPStatus.FORBIDDEN)
    return int(HTTPStatus.NOT_FOUND) if isinstance(error, FileNotFoundError) else status_of(error)


def _said(place: Place, error: Exception, verb: str) -> str:
    """What went wrong, and what to do."""
    text, kind, status = str(error), type(error).__name__, status_of(error)
    code = _code(error)
    answer = f"the server answered {status}{' ' * bool(code)}{code}" if status else ""
    if isinstance(error, FileNotFoundError) or status == HTTPStatus.NOT_FOUND:
        what = f"bucket {place.bucket!r}" if is_bucket_missing(error) else "such object"
        return f"there is no {what}; check the address"
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
    """The first line of what obstore says, without the address that was asked."""
    first = _ADDRESS.sub("...", text.partition("\n")[0]).strip()
    return first.rpartition(" - ")[2][:200] or "the connection failed"
