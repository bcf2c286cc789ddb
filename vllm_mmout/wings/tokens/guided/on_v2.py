"""Forbid tokens in a model's answers with a logits processor for vLLM's Model Runner V2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_mmout.wings.tokens.guided.configure import v2_interface
from vllm_mmout.wings.tokens.guided.guide import TokenTracker
from vllm_mmout.wings.tokens.guided.masks import Masks
from vllm_mmout.wings.tokens.guided.request_guides import refuse_client_rules, tracker_of

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

_Base: Any = v2_interface() or object


class GuidedOnV2(_Base):  # type: ignore[misc]  # used only with releases that have this base class
    """vLLM logits processor for Model Runner V2, which forbids tokens by the token rules of each request."""

    def __init__(self, vllm_config: VllmConfig, req_states: Any) -> None:
        self._states = req_states
        self._requests: dict[int, TokenTracker] = {}
        self._masks = Masks()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise an error if a client sets token rules (`Guide`). Only the engine may set token rules."""
        refuse_client_rules(sampling_params)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Start tracking the tokens of a new or resumed request. Return whether the request has token rules.

        ``req_idx`` is the request's index in vLLM's table of running requests.
        """
        tracker = tracker_of(sampling_params)
        if tracker is None:
            self._requests.pop(req_idx, None)
            return False
        self._requests[req_idx] = tracker
        return True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Set ``logits`` [requests, vocabulary] to minus infinity for tokens that the rules of a request forbid."""
        slots = ctx.idx_mapping_np.tolist()
        guided = [(row, slot) for row, slot in enumerate(slots) if slot in self._requests]
        if not guided:
            return logits
        return self._masks.apply(logits, lambda: self._updated_trackers(guided, ctx))

    def _updated_trackers(self, guided: list[tuple[int, int]], ctx: Any) -> list[tuple[int, TokenTracker]]:
        """Update the token trackers of the requests in ``guided``. Return pairs (row in the logits, tracker).

        ``guided`` holds (row in the logits, index of the request) for each restricted request. For most requests, the
        only new token is the token that is fed in this step.
        """
        fed: list[int] | None = None
        lengths, prompts = ctx.seq_lens_upper_bound_np, self._states.prompt_len.np
        for row, slot in guided:
            tracker = self._requests[slot]
            start, stop = int(prompts[slot]) + tracker.seen, int(lengths[row])
            if stop - start == 1:
                fed = ctx.input_ids.tolist() if fed is None else fed
                tracker.read([fed[row]])
            elif stop > start:  # it continues after a preemption
                tracker.read(self._states.all_token_ids.gpu[slot, start:stop].tolist())
        return [(row, self._requests[slot]) for row, slot in guided]
