"""Response header that lists the assumptions about an input. It is used if the response is a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

WARNINGS: Final = "X-MMOut-Warnings"
"""Name of the header with the assumptions about an input, as a JSON list of sentences in ASCII."""
_HEADER_BYTES: Final = 4000
"""Maximum number of bytes of the header. Servers and proxies refuse headers above about 8 KB."""


def warnings_header(warnings: Sequence[str]) -> dict[str, str]:
    """Return the header ``X-MMOut-Warnings``, which lists the assumptions about an input that ``warnings`` holds.

    Return an empty dict if ``warnings`` is empty.

    Sentences beyond 4 KB are replaced by their number. JSON escapes characters that headers cannot hold.
    """
    for count in range(len(warnings), 0, -1):
        left = len(warnings) - count
        text = json.dumps([*warnings[:count], *[f"and {left} more"] * (left > 0)])
        if len(text) <= _HEADER_BYTES or count == 1:
            return {WARNINGS: text[:_HEADER_BYTES]}
    return {}
