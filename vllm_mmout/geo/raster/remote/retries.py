"""Retries of requests that failed for a temporary reason, and the pauses between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import urllib3
from urllib3.exceptions import HTTPError

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote.fetch_options import RETRIES, TIMEOUT, FetchOptions

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

_Result = TypeVar("_Result")

_WORTH_A_TRY = 2**19
"""Number of bytes received before a connection broke that make the attempt count as progress, not as a failure."""


class BrokenError(Exception):
    """A request failed for a temporary reason. ``wait_s`` is the delay in seconds that the server asks for."""

    def __init__(self, words: str, wait_s: float = 0.0) -> None:
        super().__init__(words)
        self.wait_s = wait_s


def call_with_retries(
    step: Callable[[], _Result], pause: Callable[[BrokenError, int], None], came: Callable[[], int]
) -> _Result:
    """Call ``step``, and again if it raises `BrokenError`, until ``pause`` raises an error.

    ``pause`` is called with the error and the number of failures before each retry. ``came`` returns the number of
    bytes received so far. An attempt that received at least 512 KiB does not count as a failure.
    """
    tries = had = 0
    while True:
        try:
            return step()
        except BrokenError as error:
            have = came()
            tries += have - had < _WORTH_A_TRY
            had = have
            pause(error, tries)


def pause_s(name: str, what: str, error: BrokenError, tries: int, options: FetchOptions) -> float:
    """Return the seconds to wait before the next attempt.

    Raises InputError after too many failures, or if the server's delay is longer than the timeout. ``name`` is the
    address for messages, ``what`` the data that is fetched, and ``tries`` the number of failed attempts.
    """
    if error.wait_s > options.timeout:
        raise InputError(
            f"{name}: {error}, and asks to wait {error.wait_s:.0f} s, longer than {TIMEOUT}"
            f" ({options.timeout:g} s); try again later"
        ) from error
    if tries > options.retries:
        often = f"{tries} times" if tries > 1 else "once"
        raise InputError(
            f"{name}: {what} cannot be fetched, tried {often}: {error}; try again later, or raise"
            f" {RETRIES} ({options.retries}) or {TIMEOUT} ({options.timeout:g} s)"
        ) from error
    return max(options.pause(tries), error.wait_s)


def retry_after_s(response: BaseHTTPResponse) -> float:
    """Return the delay in seconds in a response's ``Retry-After`` header, or 0 if it is missing or invalid."""
    try:
        return float(urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", "0")))
    except (HTTPError, ValueError, OverflowError):  # the header is neither a number nor a date
        return 0.0
