"""PerRequest: what a model's forward returns when the requests of a step differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.pooler import IdentityPooler

from vllm_mmout.errors import MMOutError

if TYPE_CHECKING:
    from vllm.v1.pool.metadata import PoolingMetadata

    from vllm_mmout.processors.base import Raw

logger = init_logger("vllm.mmout")

Outcome: TypeAlias = "Raw | MMOutError"
"""What forward gave for a request, or what it failed with."""


class PerRequest(torch.Tensor):
    """An empty tensor [requests, 0] that carries one outcome a request.

    vLLM takes from ``forward`` one tensor with the requests on axis 0, slices it and hands it to the pooler; outputs of
    different shapes, or several of them, do not fit into one. The pooler takes them from ``parts``.
    """

    parts: list[Outcome]

    @staticmethod
    def of(parts: list[Outcome], device: torch.device) -> PerRequest:
        """Wrap outcomes.

        Args:
            parts: for each request, in their order, its tensor or dict of tensors without axis 0, or its failure.
            device: the model's device.

        """
        wrapped = torch.empty((len(parts), 0), device=device).as_subclass(PerRequest)
        wrapped.parts = parts
        return wrapped

    def __getitem__(self, item: Any) -> Any:
        """Slice along axis 0, the one thing that vLLM does with it."""
        if isinstance(item, slice):
            return PerRequest.of(self.parts[item], self.device)
        return super().__getitem__(item)


class PlainPooler(IdentityPooler):
    """Hands vLLM what the model gave, as it is; of several outcomes those that vLLM can carry."""

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata) -> Any:
        """One tensor with the requests on axis 0, or a list of one tensor a request."""
        if isinstance(hidden_states, PerRequest):
            return [plain(part) for part in hidden_states.parts]
        return hidden_states


def plain(outcome: Outcome) -> torch.Tensor:
    """What a request without a processor gets; vLLM can carry no dict, so of several tensors the first.

    It can carry no failure either: a request that failed gets an empty tensor, the log says why.
    """
    if isinstance(outcome, MMOutError):
        logger.error("a request for raw tensors failed and gets an empty one: %s", outcome)
        return torch.empty(0)
    return outcome if isinstance(outcome, torch.Tensor) else next(iter(outcome.values()))
