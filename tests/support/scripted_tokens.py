"""A logits processor for tests: requests with ``extra_args={"script": [...]}`` generate exactly these tokens."""

from __future__ import annotations

import time

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
        said = params.extra_args or {}
        return Script(said["script"], said.get("pace", 0.0)) if "script" in said else None


class Script:
    """Of one request."""

    def __init__(self, tokens, pace=0.0):
        self.tokens = tokens
        self.pace = pace

    def __call__(self, output_ids, logits):
        """Let the next token of the script be the only one."""
        time.sleep(self.pace)
        place = len(output_ids)
        if place < len(self.tokens):
            kept = logits[self.tokens[place]].clone()
            logits = torch.full_like(logits, float("-inf"))
            logits[self.tokens[place]] = kept
        return logits


def scripted(tokens, pace=0.0, **options):
    """Sampling params of a request that generates these tokens, each after so many seconds, and ends with them."""
    from vllm import SamplingParams

    options = {"max_tokens": len(tokens), "temperature": 1.0, "ignore_eos": True, **options}
    return SamplingParams(extra_args={"script": list(tokens), "pace": pace}, **options)
