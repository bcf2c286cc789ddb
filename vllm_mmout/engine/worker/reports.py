"""Reports: outputs that an iterative model gives for a request before its final result.

vLLM's runners take only finished requests from the pooler. The reports of unfinished requests are therefore attached
to the worker's output of a step, and the scheduler of iterative models sends them to the clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import AsyncModelRunnerOutput

if TYPE_CHECKING:
    import torch
    from vllm.v1.outputs import ModelRunnerOutput

_ATTRIBUTE: Final = "mmout_reports"
"""Attribute of a `ModelRunnerOutput` that maps request ids to packed early outputs."""


class Reports:
    """Buffer for the packed early outputs of a step, by row in the batch, until the worker sends them."""

    def __init__(self) -> None:
        self._rows: dict[int, torch.Tensor] = {}

    def put(self, row: int, buffer: torch.Tensor) -> None:
        """Keep the report of a row, uint8 [bytes]."""
        self._rows[row] = buffer

    def sent_with(self, output: Any) -> Any:
        """Return the worker's output of a step with the step's reports attached, and clear the reports."""
        if not self._rows or output is None:
            return output
        rows, self._rows = self._rows, {}
        if isinstance(output, AsyncModelRunnerOutput):
            return _LateOutput(output, rows)
        return _with(output, rows)


class _LateOutput(AsyncModelRunnerOutput):
    """Output that is still being copied to the host, with the reports to attach to it."""

    def __init__(self, output: AsyncModelRunnerOutput, rows: dict[int, torch.Tensor]) -> None:
        self._output = output
        self._rows = rows

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the copy, and return the output with the reports attached."""
        return _with(self._output.get_output(), self._rows)


def _with(output: ModelRunnerOutput, rows: dict[int, torch.Tensor]) -> ModelRunnerOutput:
    reports = {output.req_ids[row]: buffer.cpu() for row, buffer in rows.items()}
    setattr(output, _ATTRIBUTE, reports)
    return output


def add_reports(outputs: dict[int, EngineCoreOutputs], output: ModelRunnerOutput, requests: dict[str, Any]) -> None:
    """Add a step's reports to the outputs that the scheduler sends to each client, ahead of the finished requests.

    Reports of a request that is not in `requests`, the scheduler's own table, are dropped: the request was aborted.
    """
    for request_id, buffer in getattr(output, _ATTRIBUTE, {}).items():
        request = requests.get(request_id)
        if request is None:
            continue
        client = outputs.setdefault(request.client_index, EngineCoreOutputs())
        client.outputs.insert(0, EngineCoreOutput(request_id, [], pooling_output=buffer))
