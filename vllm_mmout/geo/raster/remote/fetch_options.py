"""Class `FetchOptions`: timeout, retries and size limit for fetching files from servers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from vllm_mmout.errors import OptionError
from vllm_mmout.retries import Retries

TIMEOUT, RETRIES, LIMIT = "MMOUT_FETCH_TIMEOUT", "MMOUT_FETCH_RETRIES", "MMOUT_FETCH_LIMIT"
_LONGEST = 86400
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"([0-9]{1,15})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """Timeout, retries and size limit of requests to a file server."""

    timeout: float = 30.0
    """Longest wait, in seconds, for a connection, and for the next bytes of a response.

    A response also times out if fewer than 1024 bytes a second arrive on average over this time."""
    retries: int = 3
    """Number of retries after a temporary failure of a request."""
    limit: int = 4 * 2**30
    """Largest number of bytes for the download of a whole file, or for one read from a file that is fetched in parts.

    Pictures are downloaded whole, as are all files of a server without support for byte ranges."""
    backoff: float = 0.5
    """Seconds to wait before the first retry. The wait doubles with each further retry."""
    redirects: int = 5
    """Largest number of redirects that one request may follow."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the options from MMOUT_FETCH_TIMEOUT, MMOUT_FETCH_RETRIES and MMOUT_FETCH_LIMIT.

        Args:
            environment: the environment variables, `os.environ` if None. An empty variable counts as unset.

        Raises:
            OptionError: the value of a variable is invalid.

        """
        variables = os.environ if environment is None else environment
        readers = {"timeout": (TIMEOUT, _timeout), "retries": (RETRIES, _retries), "limit": (LIMIT, _limit)}
        options: dict[str, Any] = {
            name: read(text) for name, (variable, read) in readers.items() if (text := variables.get(variable))
        }
        return cls(**options)

    def new_retries(self) -> Retries:
        """Return a counter for the failed attempts of a new request."""
        return Retries(self.retries, self.backoff)


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise OptionError(f"{TIMEOUT} must be seconds, above 0 and at most {_LONGEST}, such as 30, got {text!r}")
    return seconds


def _retries(text: str) -> int:
    if not re.fullmatch("[0-9]{1,2}", text.strip()):
        raise OptionError(f"{RETRIES} must be a whole number from 0 to 99, such as 3, got {text!r}")
    return int(text)


def _limit(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if size < 1:
        raise OptionError(f"{LIMIT} must be a number of bytes above 0, such as 4294967296, 500M or 4G, got {text!r}")
    return size
