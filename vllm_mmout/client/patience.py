"""How often something is tried again that failed for a reason that may pass, and how long is waited before."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from vllm_mmout.client.errors import BrokenError, ServerError
from vllm_mmout.raster.remote.fetch_options import RETRIES, FetchOptions

Result = TypeVar("Result")

LONGEST_PAUSE = 30.0
"""Seconds between two tries, where the server does not ask for more."""
LONGEST_ASKED = 600.0
"""Seconds that a server may ask to wait."""
_RETRIES = 8
"""Some 90 seconds in all: a job of hours must outlive a router that is started again."""


def client_options(environment: Mapping[str, str] | None = None) -> FetchOptions:
    """How long a client waits and how often it tries, as MMOUT_FETCH_TIMEOUT and MMOUT_FETCH_RETRIES give it.

    Args:
        environment: the variables; None: those of this process.

    Raises:
        OptionError: a variable has a value that it cannot have.

    """
    variables = os.environ if environment is None else environment
    return FetchOptions.from_environment({**variables, RETRIES: variables.get(RETRIES) or str(_RETRIES)})


class Patience:
    """Counts the failures of one piece of work since it last went on.

    Args:
        options: how often is tried again, and the first pause.
        say: is told what failed and how long is waited.

    """

    def __init__(self, options: FetchOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._failures = 0

    def went_on(self) -> None:
        """Forget the failures."""
        self._failures = 0

    def wait(self, error: BrokenError) -> None:
        """Wait before the next try.

        Raises:
            ServerError: it failed too often, or the server asks to wait for too long.

        """
        self._failures += 1
        if self._failures > self._options.retries:
            often = f"tried {self._failures} times" if self._failures > 1 else "tried once"
            raise ServerError(f"{error} ({often}; {RETRIES} in the environment says how often)") from error
        if error.wait_s > LONGEST_ASKED:
            raise ServerError(f"{error} (the server asks to wait {error.wait_s:.0f} s; try again then)") from error
        pause = max(min(self._options.backoff * 2 ** (self._failures - 1), LONGEST_PAUSE), error.wait_s)
        self._say(f"{error}; trying again in {pause:.3g} s")
        time.sleep(pause)

    def insist(self, step: Callable[[], Result]) -> Result:
        """Do something, and again after a pause where it fails with `BrokenError`."""
        while True:
            try:
                return step()
            except BrokenError as error:
                self.wait(error)
