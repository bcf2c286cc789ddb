"""A measuring process of its own that is told which phase begins, a line each, and answers each with the same line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self


class PhasedProcess:
    """Starts ``python -m`` of a measuring module; use it as a context, begin phases, then ask for what it measured.

    Args:
        arguments: the module and its arguments.
        environment: variables beside those of this process.

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
        """Begin a phase; it has begun when this returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(phase, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if answer.strip() != phase:
            raise RuntimeError(f"the measuring process ended, with status {self._process.wait()}")

    def measured(self) -> Any:
        """End the measuring and give what came of it as JSON, by phase."""
        answer, _ = self._process.communicate()
        return json.loads(answer)
