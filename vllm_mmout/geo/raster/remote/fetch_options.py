"""How files are fetched from servers: FetchOptions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from vllm_mmout.errors import OptionError

TIMEOUT, RETRIES, LIMIT = "MMOUT_FETCH_TIMEOUT", "MMOUT_FETCH_RETRIES", "MMOUT_FETCH_LIMIT"
_LONGEST = 86400
_LONGEST_PAUSE = 30.0
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"([0-9]{1,15})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How long a server is waited for, how often it is asked, and how much is taken from it."""

    timeout: float = 30.0
    """Seconds in which a connection must stand, the next piece of an answer come, and a minimum of it arrive."""
    retries: int = 3
    """How often a request is repeated that failed for a reason that may pass."""
    limit: int = 4 * 2**30
    """Bytes that are taken at once: of a file whose server gives no parts of it, or of a picture."""
    backoff: float = 0.5
    """Seconds before the first repetition; each further one waits twice as long."""
    redirects: int = 5
    """How many redirects of one request are followed."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The options as the variables MMOUT_FETCH_TIMEOUT, MMOUT_FETCH_RETRIES and MMOUT_FETCH_LIMIT give them.

        Args:
            environment: the variables; None: those of this process. One that is empty counts as absent.

        Raises:
            OptionError: a variable has a value that it cannot have.

        """
        variables = os.environ if environment is None else environment
        readers = {"timeout": (TIMEOUT, _timeout), "retries": (RETRIES, _retries), "limit": (LIMIT, _limit)}
        given: dict[str, Any] = {
            name: read(text) for name, (variable, read) in readers.items() if (text := variables.get(variable))
        }
        return cls(**given)

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row; 0 after none."""
        return min(self.backoff * 2 ** (failures - 1), _LONGEST_PAUSE) if failures else 0.0


def _timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise OptionError(f"{TIMEOUT} must be seconds, more than 0, at most {_LONGEST}, as 30, got {text!r}")
    return seconds


def _retries(text: str) -> int:
    if not re.fullmatch("[0-9]{1,2}", text.strip()):
        raise OptionError(f"{RETRIES} must be a whole number from 0 to 99, as 3, got {text!r}")
    return int(text)


def _limit(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    size = int(found[1]) * _UNITS[found[2].upper()] if found else 0
    if size < 1:
        raise OptionError(f"{LIMIT} must be bytes, more than 0, as 4294967296, 500M or 4G, got {text!r}")
    return size
