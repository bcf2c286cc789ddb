"""IterativeModel: an author's ``begin``, ``step`` and ``finish`` in the shape that vLLM wants of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.pooler import IdentityPooler

from vllm_mmout.engine.worker.reduce import Stepped
from vllm_mmout.errors import ModelError, raise_interrupt, type_and_message
from vllm_mmout.log import logger
from vllm_mmout.models.inputs.model_inputs import FIELD, tensors_of
from vllm_mmout.models.single_pass import SinglePassModel
from vllm_mmout.wings.iterative.running import Steps

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.pool.metadata import PoolingMetadata


class IterativeModel(SinglePassModel):
    """Base of the adapters; the pooler works, since it alone is told of each request that runs.

    vLLM gives ``forward`` the tensors of requests that begin, in the order of their rows.
    """

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config, prefix)
        self._steps = Steps(self.model)
        self.pooler = StepPooler(self._steps)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **inputs: Any,
    ) -> torch.Tensor:
        """Keep the tensors of new requests for the pooler; gives nothing."""
        given: list[Any] = []
        try:
            given += [self._taken(tensors_of(values, self._keywords)) for values in inputs.get(FIELD, ())]
        except BaseException as error:
            raise_interrupt(error)
            if self.measuring:
                raise
            logger.exception("the inputs of a step of %s cannot be read", self.architecture)
            failed = ModelError(f"the inputs of a step of {self.architecture} failed: {type_and_message(error)}")
            given = [failed] * len(inputs.get(FIELD, ()))
        self._steps.arrive(given)
        return torch.empty((positions.shape[-1], 0), device=self._device)

    def try_out(self) -> None:
        """Nothing: what a request takes, its first steps tell."""

    def compile_forward(self, max_batch: int, *, if_faster: bool) -> None:
        """Not for such models."""
        logger.warning("`compile` is for models that answer in one forward; %s runs as it is", self.architecture)


class StepPooler(IdentityPooler):
    """Does a step of each request."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata) -> Any:
        """The results of requests that are at their end."""
        with torch.inference_mode():
            return Stepped(*self._steps.advance(pooling_metadata))
