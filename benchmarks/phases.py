"""A measuring process that reads the name of each phase as a line of input and confirms it with the same line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self


class PhasedProcess:
    """A measuring process: a context manager that runs ``python -m`` with a module.

    Call `begin` for each phase, then `measured` for the results.

    Args:
        arguments: The module's name and its arguments.
        environment: Variables added to those of this process.

    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, phase: str) -> None:
        """Begin a phase, and return once the measuring process has confirmed it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(phase, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if answer.strip() != phase:
            raise RuntimeError(f"the measuring process ended with status {self._process.wait()}")

    def measured(self) -> Any:
        """End the measurement and return the decoded JSON that the process printed: its results by phase."""
        answer, _ = self._process.communicate()
        return json.loads(answer)
