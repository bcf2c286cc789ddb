"""Layouts of the tokens that encode pictures and sounds, and the parser that finds them in a stream.

This package needs neither torch nor vLLM.
"""

from vllm_mmout.wings.tokens.layouts.layout import TokenLayout
from vllm_mmout.wings.tokens.layouts.parser import Medium, StreamParser, parse

__all__ = ["Medium", "StreamParser", "TokenLayout", "parse"]
