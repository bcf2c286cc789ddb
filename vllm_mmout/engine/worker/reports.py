"""What a model that works step by step gives before its result: it goes beside the step's output to the scheduler.

vLLM's runners ask the pooler for finished requests alone, so what others give is put on the output that the worker
hands over, and the scheduler of such models sends it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import AsyncModelRunnerOutput

if TYPE_CHECKING:
    import torch
    from vllm.v1.outputs import ModelRunnerOutput

_ATTRIBUTE: Final = "mmout_reports"
"""Of a `ModelRunnerOutput`: packed results by request id."""


class Reports:
    """Packed results of a step by their row in the batch, until the worker takes them."""

    def __init__(self) -> None:
        self._rows: dict[int, torch.Tensor] = {}

    def put(self, row: int, buffer: torch.Tensor) -> None:
        """Keep one, uint8 [bytes]."""
        self._rows[row] = buffer

    def sent_with(self, output: Any) -> Any:
        """What the worker hands over for a step, with the reports of that step."""
        if not self._rows or output is None:
            return output
        rows, self._rows = self._rows, {}
        if isinstance(output, AsyncModelRunnerOutput):
            return _LateOutput(output, rows)
        return _with(output, rows)


class _LateOutput(AsyncModelRunnerOutput):
    """An output that is being copied to the host, with reports."""

    def __init__(self, output: AsyncModelRunnerOutput, rows: dict[int, torch.Tensor]) -> None:
        self._output = output
        self._rows = rows

    def get_output(self) -> ModelRunnerOutput:
        """As vLLM's."""
        return _with(self._output.get_output(), self._rows)


def _with(output: ModelRunnerOutput, rows: dict[int, torch.Tensor]) -> ModelRunnerOutput:
    found = {output.req_ids[row]: buffer.cpu() for row, buffer in rows.items()}
    setattr(output, _ATTRIBUTE, found)
    return output


def add_reports(outputs: dict[int, EngineCoreOutputs], output: ModelRunnerOutput, requests: dict[str, Any]) -> None:
    """Add a step's reports to what the scheduler sends to each client, before what has ended.

    ``requests`` are those that the scheduler still knows; nobody waits for others.
    """
    for request_id, buffer in getattr(output, _ATTRIBUTE, {}).items():
        request = requests.get(request_id)
        if request is None:
            continue
        client = outputs.setdefault(request.client_index, EngineCoreOutputs())
        client.outputs.insert(0, EngineCoreOutput(request_id, [], pooling_output=buffer))
