"""Describe the tokens that encode pictures and sounds, and find these tokens in a model's output.

This package needs neither torch nor vLLM.
"""

from vllm_mmout.wings.tokens.layouts.layout import TokenLayout
from vllm_mmout.wings.tokens.layouts.parser import Medium, StreamParser, parse

__all__ = ["Medium", "StreamParser", "TokenLayout", "parse"]
