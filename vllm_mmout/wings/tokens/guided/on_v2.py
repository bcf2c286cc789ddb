"""GuidedOnV2: the logits processor that restricts the tokens of answers on vLLM's Model Runner V2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_mmout.wings.tokens.guided.configure import v2_interface
from vllm_mmout.wings.tokens.guided.guide import Follower
from vllm_mmout.wings.tokens.guided.masks import Masks
from vllm_mmout.wings.tokens.guided.request_guides import follower_of, refuse_foreign

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

_Base: Any = v2_interface() or object


class GuidedOnV2(_Base):  # type: ignore[misc]  # used only with releases that have this base class
    """A logits processor like `GuidedOnV1`. Requests are identified by slot numbers. Their tokens are on the device."""

    def __init__(self, vllm_config: VllmConfig, req_states: Any) -> None:
        self._states = req_states
        self._requests: dict[int, Follower] = {}
        self._masks = Masks()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise an error if a client has put rules for the answer's tokens in its sampling params."""
        refuse_foreign(sampling_params)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Add a new or preempted request to a slot. Return whether its tokens are restricted."""
        follower = follower_of(sampling_params)
        if follower is None:
            self._requests.pop(req_idx, None)
            return False
        self._requests[req_idx] = follower
        return True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Forbid tokens in ``logits`` [requests, vocabulary], in the rows of requests with a `Guide`."""
        slots = ctx.idx_mapping_np.tolist()
        guided = [(row, slot) for row, slot in enumerate(slots) if slot in self._requests]
        if not guided:
            return logits
        return self._masks.apply(logits, lambda: self._followed(guided, ctx))

    def _followed(self, guided: list[tuple[int, int]], ctx: Any) -> list[tuple[int, Follower]]:
        """Pass each restricted request's new tokens to its `Follower`, and return pairs of logits row and follower.

        ``guided`` holds the row and the slot of each restricted request. For most requests, the only new token is the
        token that is fed in this step.
        """
        fed: list[int] | None = None
        lengths, prompts = ctx.seq_lens_upper_bound_np, self._states.prompt_len.np
        for row, slot in guided:
            follower = self._requests[slot]
            start, stop = int(prompts[slot]) + follower.seen, int(lengths[row])
            if stop - start == 1:
                fed = ctx.input_ids.tolist() if fed is None else fed
                follower.follow([fed[row]])
            elif stop > start:  # it continues after a preemption
                follower.follow(self._states.all_token_ids.gpu[slot, start:stop].tolist())
        return [(row, self._requests[slot]) for row, slot in guided]
