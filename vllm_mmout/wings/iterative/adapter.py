"""Serve a PyTorch model with the methods ``begin``, ``step`` and ``finish`` as a vLLM model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.pooler import IdentityPooler

from vllm_mmout.engine.worker.reduce import Stepped
from vllm_mmout.errors import ModelError, raise_interrupt, type_and_message
from vllm_mmout.log import logger
from vllm_mmout.models.inputs.engine_input import FIELD, tensors_of
from vllm_mmout.models.single_pass import SinglePassModel
from vllm_mmout.wings.iterative.active_requests import StepRunner

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.pool.metadata import PoolingMetadata


class IterativeModel(SinglePassModel):
    """Base class of vLLM models that wrap a PyTorch model with the methods ``begin``, ``step`` and ``finish``.

    The pooler runs the steps, because only the pooler learns of every running request. vLLM passes to ``forward`` the
    tensors of the requests that begin, in the order of their rows in the batch.
    """

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config, prefix)
        self._steps = StepRunner(self.model)
        self.pooler = StepPooler(self._steps)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **inputs: Any,
    ) -> torch.Tensor:
        """Store the input tensors of new requests for the pooler. Return an empty tensor."""
        arrivals: list[Any] = []
        try:
            arrivals += [self._taken(tensors_of(values, self._keywords)) for values in inputs.get(FIELD, ())]
        except BaseException as error:
            raise_interrupt(error)
            if self.measuring:
                raise
            logger.exception("the input tensors of a step of %s cannot be read", self.architecture)
            failed = ModelError(
                f"reading the input tensors of a step of {self.architecture} failed: {type_and_message(error)}"
            )
            arrivals = [failed] * len(inputs.get(FIELD, ()))
        self._steps.arrive(arrivals)
        return torch.empty((positions.shape[-1], 0), device=self._device)

    def try_out(self) -> None:
        """Do nothing. Unlike other models, an iterative model is not tried out on a dummy input at engine start."""

    def compile_forward(self, max_batch: int, *, if_faster: bool) -> None:
        """Log a warning, because an iterative model cannot be compiled."""
        logger.warning("`compile` is for models that answer in one forward; %s runs without it", self.architecture)


class StepPooler(IdentityPooler):
    """vLLM pooler that runs the scheduled steps of an iterative model, such as denoising steps."""

    def __init__(self, steps: StepRunner) -> None:
        super().__init__()
        self._steps = steps

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata) -> Any:
        """Run the scheduled steps. Return the results of finished requests, and previews of running requests."""
        with torch.inference_mode():
            return Stepped(*self._steps.advance(pooling_metadata))
