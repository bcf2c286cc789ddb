"""Print the results of ``vllm-mmout run``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm_mmout.geo import without_secrets

if TYPE_CHECKING:
    from vllm_mmout.engine.request_output import MultimodalRequestOutput


def report(name: str, result: MultimodalRequestOutput) -> bool:
    """Print the result paths and warnings of an input, or its error if it failed. Return True if it succeeded."""
    if result.error is not None:
        name, message = without_secrets(name), str(result.error)
        print(message if name in message else f"{name}: {message}", file=sys.stderr)
        return False
    for text in result.assumed:
        print(f"warning: {without_secrets(name)}: {text}", file=sys.stderr)
    for path in dict.fromkeys(output.path for output in _outputs_in(result.outputs)):
        print(path)
    return True


def _outputs_in(outputs: Any) -> Iterator[Any]:
    """Yield ``outputs`` if it is a single output, or each output in nested dicts of outputs."""
    if not isinstance(outputs, dict):
        yield outputs
        return
    for inner in outputs.values():
        yield from _outputs_in(inner)
