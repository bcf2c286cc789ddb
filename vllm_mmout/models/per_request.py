"""PerRequest: what a model's forward returns when the requests of a step differ in shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw


class PerRequest(torch.Tensor):
    """An empty tensor [requests, 0] that carries one output a request.

    vLLM takes from ``forward`` one tensor with the requests on axis 0, slices it and hands it to the pooler; outputs of
    different shapes, or several of them, do not fit into one. The pooler wrapper takes them from ``parts``.
    """

    parts: list[Raw]

    @staticmethod
    def of(parts: list[Raw], device: torch.device) -> PerRequest:
        """Wrap outputs.

        Args:
            parts: for each request, in their order, its tensor or dict of tensors without axis 0.
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
