"""A logits processor for tests: requests with ``extra_args={"script": [...]}`` generate exactly these tokens."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

up_to_the_stop = pytest.mark.skipif(
    not hasattr(OutputProcessor, "_trim_surplus_tokens"),
    reason="vLLM before 0.32 keeps the tokens of a step that follow a stop string",
)


class Scripted(AdapterLogitsProcessor):
    """Leaves each scripted request one token a step; what comes behind its script is free."""

    @classmethod
    def validate_params(cls, params):
        """Any."""

    def is_argmax_invariant(self):
        """It is not."""
        return False

    def new_req_logits_processor(self, params):
        """What leaves a request its next token."""
        script = (params.extra_args or {}).get("script")
        return None if script is None else Script(script)


class Script:
    """Of one request."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, output_ids, logits):
        """Let the next token of the script be the only one."""
        place = len(output_ids)
        if place < len(self.tokens):
            kept = logits[self.tokens[place]].clone()
            logits = torch.full_like(logits, float("-inf"))
            logits[self.tokens[place]] = kept
        return logits


def scripted(tokens, **options):
    """Sampling params of a request that generates these tokens, and ends with them."""
    from vllm import SamplingParams

    options = {"max_tokens": len(tokens), "temperature": 1.0, "ignore_eos": True, **options}
    return SamplingParams(extra_args={"script": list(tokens)}, **options)
