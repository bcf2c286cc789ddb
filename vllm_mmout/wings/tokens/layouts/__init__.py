"""Tokens that are codes of a picture or a sound: how they lie in a stream, and how they are found in it.

Neither torch nor vLLM is needed.
"""

from vllm_mmout.wings.tokens.layouts.layout import TokenLayout
from vllm_mmout.wings.tokens.layouts.parser import Medium, StreamParser, parse

__all__ = ["Medium", "StreamParser", "TokenLayout", "parse"]
