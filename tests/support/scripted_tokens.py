"""A logits processor for tests: requests with ``extra_args={"script": [...]}`` generate exactly these tokens."""

from __future__ import annotations

import time
from pathlib import Path

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
        return Script(said) if "script" in said else None


HELD_S = 1.0
"""The seconds that a held token waits for its file."""


def hold_back(file):
    """Wait until a file exists, for a second at most: an answer that waits for longer would bring no chunk either."""
    until = time.monotonic() + HELD_S
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.005)


class Script:
    """The tokens of one request, from its ``extra_args``."""

    def __init__(self, said):
        self.tokens = said["script"]
        self.pace = said.get("pace", 0.0)
        self.hold = said.get("hold")

    def __call__(self, output_ids, logits):
        """Let the next token of the script be the only one."""
        time.sleep(self.pace)
        place = len(output_ids)
        if self.hold and place >= self.hold[0]:
            hold_back(Path(self.hold[1]))
        if place < len(self.tokens):
            kept = logits[self.tokens[place]].clone()
            logits = torch.full_like(logits, float("-inf"))
            logits[self.tokens[place]] = kept
        return logits


def scripted(tokens, pace=0.0, hold=None, **options):
    """Sampling params of a request that generates these tokens, each after ``pace`` seconds, and ends with them.

    ``hold`` is ``(place, path)``: from this place on, each token waits up to a second for a file at the path.
    """
    from vllm import SamplingParams

    options = {"max_tokens": len(tokens), "temperature": 1.0, "ignore_eos": True, **options}
    hold = hold and (hold[0], str(hold[1]))
    return SamplingParams(extra_args={"script": list(tokens), "pace": pace, "hold": hold}, **options)
