"""Limit the memory of a response's results, and stop encoding them when the client is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from io import BytesIO
from typing import Any

from vllm_mmout.errors import AbortedError, OptionError
from vllm_mmout.outputs import PolygonsOutput
from vllm_mmout.outputs.base import MediaOutput
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.serving.options import ServingOptions, flag


class AnswerBudget:
    """Memory limit in bytes for all results of one response. All threads that encode results share the limit.

    Args:
        limit: most bytes of the answer; by default the default of ``--mmout-max-answer``.

    """

    def __init__(self, limit: int = ServingOptions().max_answer) -> None:
        self.limit = limit
        self._made = 0
        self._taking = threading.Lock()
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """Stop encoding the response because its client is gone."""
        self._abandoned.set()

    def check(self, nbytes: int, what: str, remedy: str = "ask for a part of the input, or for less output") -> None:
        """Raise OptionError if ``nbytes`` more bytes would exceed the response's memory limit.

        Call this before the bytes are allocated.

        Args:
            nbytes: size of the values that are to be copied or encoded, from shape and dtype.
            what: the name of these values, for the message.
            remedy: what the client can do.

        Raises:
            OptionError: the answer would be above its limit.
            AbortedError: the client is gone.

        """
        if self._abandoned.is_set():
            raise AbortedError("the client closed its connection before its answer was made")
        if self._made + nbytes > self.limit:
            beside = f" beside {self._made} of other results" if self._made else ""
            raise OptionError(
                f"the answer is too large: {what} has {nbytes} bytes{beside}, and this server makes answers of at most"
                f" {self.limit} bytes ({flag('max_answer')}); {remedy}, or have the server's operator raise the limit"
            )

    def take(self, nbytes: int, what: str) -> None:
        """Count ``nbytes`` of an encoded result against the response's limit. Raise OptionError above the limit."""
        with self._taking:
            self.check(nbytes, what)
            self._made += nbytes

    def buffer(self, what: str) -> BytesIO:
        """Return an in-memory file whose writes raise OptionError above the memory limit of the response.

        ``what`` names the content of the file in the message.
        """
        return _BudgetedFile(self, what)


def check_memory(output: Any, budget: AnswerBudget, name: str = "") -> None:
    """Raise OptionError if an output, or its file in the format ``name``, exceeds the memory limit of the response.

    Call this before the output is copied or encoded.
    """
    raster = output.classes if isinstance(output, PolygonsOutput) else output
    if not isinstance(raster, MediaOutput):
        return
    what = repr(output)
    if not isinstance(raster, StoredRaster):
        budget.check(raster.nbytes, what)
    elif name == "npz":
        budget.check(raster.nbytes, f"{what} as npz, which is made in memory,", "choose output_format tiff")


class _BudgetedFile(BytesIO):
    """BytesIO whose writes raise if they exceed the response's memory limit."""

    def __init__(self, budget: AnswerBudget, what: str) -> None:
        super().__init__()
        self._budget = budget
        self._what = what

    def write(self, data: Any, /) -> int:
        self._budget.check(self.tell() + memoryview(data).nbytes, self._what)
        return super().write(data)

    def writelines(self, lines: Iterable[Any], /) -> None:
        for line in lines:
            self.write(line)
