"""What was assumed about an input, in the header of an answer that is a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

WARNINGS: Final = "X-MMOut-Warnings"
"""The header of an answer that is a file: what was assumed about its input, a JSON list of sentences in ASCII."""
_HEADER_BYTES: Final = 4000
"""Bytes of that header: servers and proxies refuse headers of more than about 8 KB."""


def warnings_header(warnings: Sequence[str]) -> dict[str, str]:
    """Return the header with what was assumed about an input; empty if nothing was. Sentences beyond 4 KB are counted.

    JSON escapes what headers cannot hold.
    """
    for count in range(len(warnings), 0, -1):
        left = len(warnings) - count
        text = json.dumps([*warnings[:count], *[f"and {left} more"] * (left > 0)])
        if len(text) <= _HEADER_BYTES or count == 1:
            return {WARNINGS: text[:_HEADER_BYTES]}
    return {}
