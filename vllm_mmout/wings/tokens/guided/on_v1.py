"""Restrict the tokens of answers by a logits processor for vLLM's Model Runner V1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from vllm_mmout.wings.tokens.guided.guide import TokenTracker
from vllm_mmout.wings.tokens.guided.masks import Masks
from vllm_mmout.wings.tokens.guided.request_guides import refuse_client_rules, tracker_of

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate


class GuidedOnV1(LogitsProcessor):
    """vLLM logits processor that forbids tokens for requests with a `Guide`, the rules for their next tokens."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001 - vLLM's signature
        self._requests: dict[int, tuple[TokenTracker, Sequence[int]]] = {}
        self._masks = Masks()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise an error if a client sets token rules (`Guide`). Only the engine may set token rules."""
        refuse_client_rules(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """Return False, because this processor may forbid the most likely token."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Update the table of restricted requests after vLLM has added, removed or moved requests in its batch."""
        process_dict_updates(self._requests, batch_update, _tracker_and_tokens)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Set the ``logits`` [requests, vocabulary] of tokens that may not come next to minus infinity."""
        return self._masks.apply(logits, self._updated_trackers) if self._requests else logits

    def _updated_trackers(self) -> list[tuple[int, TokenTracker]]:
        for tracker, output in self._requests.values():
            tracker.catch_up(_without_placeholders(output))
        return [(row, tracker) for row, (tracker, _) in self._requests.items()]


def _tracker_and_tokens(
    params: SamplingParams, _prompt: Any, output: list[int]
) -> tuple[TokenTracker, list[int]] | None:
    """Return (token tracker, output tokens) for a new request. Return None if the request is not restricted.

    The tracker computes which tokens may come next. ``output`` is vLLM's own list of output tokens, which grows.
    """
    tracker = tracker_of(params)
    return None if tracker is None else (tracker, output)


def _without_placeholders(output: Sequence[int]) -> Sequence[int]:
    """Return ``output`` without the placeholders (-1) for token ids that are not yet copied from the GPU."""
    return output[: output.index(-1)] if output and output[-1] == -1 else output
