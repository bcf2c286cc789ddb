"""Guided requests on Model Runner V2: a logits processor of its sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_mmout.wings.tokens.guided.asked import follower_of, refuse_foreign
from vllm_mmout.wings.tokens.guided.configure import v2_interface
from vllm_mmout.wings.tokens.guided.guide import Follower
from vllm_mmout.wings.tokens.guided.masks import Masks

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

_Base: Any = v2_interface() or object


class GuidedOnV2(_Base):  # type: ignore[misc]  # of releases that have it; others name it nowhere
    """As `GuidedOnV1`; requests are known by their slots, tokens lie on the device."""

    def __init__(self, vllm_config: VllmConfig, req_states: Any) -> None:
        self._states = req_states
        self._requests: dict[int, Follower] = {}
        self._masks = Masks()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse what a client may not say."""
        refuse_foreign(sampling_params)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Take a request into a slot, also one that was preempted; says whether it is guided."""
        follower = follower_of(sampling_params)
        if follower is None:
            self._requests.pop(req_idx, None)
            return False
        self._requests[req_idx] = follower
        return True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Leave guided rows what may come next; logits: [requests, vocabulary], of which some may be guided."""
        slots = ctx.idx_mapping_np.tolist()
        guided = [(row, slot) for row, slot in enumerate(slots) if slot in self._requests]
        if not guided:
            return logits
        return self._masks.apply(logits, lambda: self._followed(guided, ctx))

    def _followed(self, guided: list[tuple[int, int]], ctx: Any) -> list[tuple[int, Follower]]:
        """Fetch what was generated since the last step: of most requests the token that was fed in this one."""
        fed: list[int] | None = None
        lengths, prompts = ctx.seq_lens_upper_bound_np, self._states.prompt_len.np
        for row, slot in guided:
            follower = self._requests[slot]
            start, stop = int(prompts[slot]) + follower.seen, int(lengths[row])
            if stop - start == 1:
                fed = ctx.input_ids.tolist() if fed is None else fed
                follower.follow([fed[row]])
            elif stop > start:  # it was preempted, and goes on
                follower.follow(self._states.all_token_ids.gpu[slot, start:stop].tolist())
        return [(row, self._requests[slot]) for row, slot in guided]
