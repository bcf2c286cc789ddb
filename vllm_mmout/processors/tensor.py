"""`TensorProcessor`, which returns the output of a model unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.outputs import TensorOutput
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.raw import own_array

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw


class TensorProcessor(OutputProcessor):
    """Processor for any model. It returns the model's tensors as NumPy arrays. Values of bfloat16 become float32."""

    name: ClassVar[str] = "tensor"
    modality: ClassVar[str] = "tensor"

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> TensorOutput:
        """Build a `TensorOutput` from the tensors of one request, without the batch axis."""
        if isinstance(raw, dict):
            return TensorOutput({key: own_array(tensor) for key, tensor in raw.items()})
        return TensorOutput(own_array(raw))
