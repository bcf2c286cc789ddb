"""Repeat requests that failed for a temporary reason, with growing pauses between the attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import urllib3
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

_Result = TypeVar("_Result")

LONGEST_PAUSE_S: Final = 30.0
"""Maximum pause between two attempts in seconds, unless the server asks for a longer pause."""


class BrokenError(Exception):
    """Error of a request that failed for a temporary reason, and may succeed if it is repeated.

    ``wait_s`` is the pause that the server asks for, in seconds.
    """

    def __init__(self, words: str, wait_s: float = 0.0) -> None:
        super().__init__(words)
        self.wait_s = wait_s


@dataclass(slots=True)
class Retries:
    """Counter of failed attempts that tells how long to pause before the next attempt, and when to stop."""

    most: int
    """Maximum number of retries after the first attempt."""
    first_pause_s: float
    """Pause before the first retry, in seconds. It doubles with each further retry."""
    failures: int = 0

    def failed(self, asked_s: float = 0.0, *, counts: bool = True) -> float | None:
        """Count a failed attempt. Return the seconds to wait before the next attempt, or None if no retry is left.

        Args:
            asked_s: the pause that the server asks for, in seconds. The returned pause is at least as long.
            counts: False for an attempt that made progress, which uses up no retry.

        """
        self.failures += counts
        if self.failures > self.most:
            return None
        pause = min(self.first_pause_s * 2 ** (self.failures - 1), LONGEST_PAUSE_S) if self.failures else 0.0
        return max(pause, asked_s)


def call_with_retries(step: Callable[[], _Result], wait: Callable[[BrokenError], None]) -> _Result:
    """Call ``step`` until it succeeds, and return its result. After a `BrokenError`, call ``wait`` to pause.

    ``wait`` pauses, or raises an error to end the attempts.
    """
    while True:
        try:
            return step()
        except BrokenError as error:
            wait(error)


def retry_after_s(response: BaseHTTPResponse) -> float:
    """Return the delay of a response's ``Retry-After`` header in seconds, or 0 if it is missing or invalid."""
    try:
        return float(urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", "0")))
    except (HTTPError, ValueError, OverflowError):  # the header is neither a number nor a date
        return 0.0
