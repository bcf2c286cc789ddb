"""Send outputs of an iterative model from the worker before the final result of their request.

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
"""Name of an attribute that this package adds to vLLM's `ModelRunnerOutput`. The attribute's value is a dict of early
outputs: request id -> uint8 [bytes]."""


class Reports:
    """Store of a step's early outputs, such as previews, until the worker sends the output of the step."""

    def __init__(self) -> None:
        self._rows: dict[int, torch.Tensor] = {}

    def put(self, row: int, buffer: torch.Tensor) -> None:
        """Store ``buffer``, the packed early output (uint8 [bytes]) of the request at index ``row`` of the batch."""
        self._rows[row] = buffer

    def attach_to(self, output: Any) -> Any:
        """Attach the stored early outputs to ``output``, the worker's output of a step, and empty the store.

        Return ``output``, or a wrapper of ``output`` if it is still being copied to the host.
        """
        if not self._rows or output is None:
            return output
        rows, self._rows = self._rows, {}
        if isinstance(output, AsyncModelRunnerOutput):
            return _LateOutput(output, rows)
        return _with(output, rows)


class _LateOutput(AsyncModelRunnerOutput):
    """Output of a step that is still being copied to the host. `get_output` waits, then attaches the early outputs."""

    def __init__(self, output: AsyncModelRunnerOutput, rows: dict[int, torch.Tensor]) -> None:
        self._output = output
        self._rows = rows

    def get_output(self) -> ModelRunnerOutput:
        """Wait until the step's output is on the host. Return it with the previews of unfinished requests attached."""
        return _with(self._output.get_output(), self._rows)


def _with(output: ModelRunnerOutput, rows: dict[int, torch.Tensor]) -> ModelRunnerOutput:
    reports = {output.req_ids[row]: buffer.cpu() for row, buffer in rows.items()}
    setattr(output, _ATTRIBUTE, reports)
    return output


def add_reports(outputs: dict[int, EngineCoreOutputs], output: ModelRunnerOutput, requests: dict[str, Any]) -> None:
    """Insert the early outputs of a step in ``outputs``, which maps each client's index to the results for the client.

    Early outputs come before the other results. They are attached to ``output``, the worker's output of the step.

    Reports of a request that is not in `requests`, the scheduler's own table, are dropped: the request was aborted.
    """
    for request_id, buffer in getattr(output, _ATTRIBUTE, {}).items():
        request = requests.get(request_id)
        if request is None:
            continue
        client = outputs.setdefault(request.client_index, EngineCoreOutputs())
        client.outputs.insert(0, EngineCoreOutput(request_id, [], pooling_output=buffer))
