"""Guided requests on vLLM's first model runner: a logits processor of its sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from vllm_mmout.wings.tokens.guided.asked import follower_of, refuse_foreign
from vllm_mmout.wings.tokens.guided.guide import Follower
from vllm_mmout.wings.tokens.guided.masks import Masks

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate


class GuidedOnV1(LogitsProcessor):
    """Leaves each request that asks for whole media the tokens that may come next; others are not looked at."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001 - as vLLM's
        self._requests: dict[int, tuple[Follower, Sequence[int]]] = {}
        self._masks = Masks()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse what a client may not say."""
        refuse_foreign(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """It is not: the likeliest token may be one that does not fit."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests that come, move and go; one that was preempted comes again with what it has generated."""
        process_dict_updates(self._requests, batch_update, _begun)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave guided rows what may come next; logits: [requests, vocabulary]."""
        return self._masks.apply(logits, self._followed) if self._requests else logits

    def _followed(self) -> list[tuple[int, Follower]]:
        for follower, output in self._requests.values():
            follower.catch_up(_known(output))
        return [(row, follower) for row, (follower, _) in self._requests.items()]


def _begun(params: SamplingParams, _prompt: Any, output: list[int]) -> tuple[Follower, list[int]] | None:
    """A request that came into the batch; ``output`` is vLLM's own list, which grows."""
    follower = follower_of(params)
    return None if follower is None else (follower, output)


def _known(output: Sequence[int]) -> Sequence[int]:
    """The tokens of an answer without those that are still on their way from the device, which are -1."""
    return output[: output.index(-1)] if output and output[-1] == -1 else output
