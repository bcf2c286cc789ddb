"""GuidedOnV1: the logits processor that restricts the tokens of answers on vLLM's first model runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from vllm_mmout.wings.tokens.guided.guide import Follower
from vllm_mmout.wings.tokens.guided.masks import Masks
from vllm_mmout.wings.tokens.guided.request_guides import follower_of, refuse_foreign

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate


class GuidedOnV1(LogitsProcessor):
    """A logits processor that forbids the tokens which a request's `Guide` excludes. It skips all other requests."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001 - vLLM's signature
        self._requests: dict[int, tuple[Follower, Sequence[int]]] = {}
        self._masks = Masks()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise an error if a client has put rules for the answer's tokens in its sampling params."""
        refuse_foreign(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """Return False, as the most likely token may be forbidden."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Track requests that enter, move within or leave the batch. Preempted requests return with their tokens."""
        process_dict_updates(self._requests, batch_update, _begun)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Forbid tokens in ``logits`` [requests, vocabulary], in the rows of requests with a `Guide`."""
        return self._masks.apply(logits, self._followed) if self._requests else logits

    def _followed(self) -> list[tuple[int, Follower]]:
        for follower, output in self._requests.values():
            follower.catch_up(_known(output))
        return [(row, follower) for row, (follower, _) in self._requests.items()]


def _begun(params: SamplingParams, _prompt: Any, output: list[int]) -> tuple[Follower, list[int]] | None:
    """Return the `Follower` of a request that enters the batch, and the list of its output tokens.

    Return None if the tokens of the request are not restricted. ``output`` is vLLM's own list, which grows.
    """
    follower = follower_of(params)
    return None if follower is None else (follower, output)


def _known(output: Sequence[int]) -> Sequence[int]:
    """Return the tokens of an answer without placeholders (-1) for tokens that are not yet copied from the device."""
    return output[: output.index(-1)] if output and output[-1] == -1 else output
