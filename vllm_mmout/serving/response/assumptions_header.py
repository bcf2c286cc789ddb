"""Response header with the assumptions made about an input, for responses that are bare files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

WARNINGS: Final = "X-MMOut-Warnings"
"""Name of the response header that lists the assumptions about an input, as a JSON list of sentences in ASCII."""
_HEADER_BYTES: Final = 4000
"""Maximum size in bytes of the response header `WARNINGS`. Servers and proxies refuse headers above about 8 KB."""


def warnings_header(warnings: Sequence[str]) -> dict[str, str]:
    """Return a dict with the response header that lists ``warnings``. The dict is empty if ``warnings`` is empty.

    The warnings are sentences about the assumptions that were made about an input. Sentences beyond 4 KB are replaced
    by their number. JSON escapes characters that headers cannot hold.
    """
    for count in range(len(warnings), 0, -1):
        left = len(warnings) - count
        text = json.dumps([*warnings[:count], *[f"and {left} more"] * (left > 0)])
        if len(text) <= _HEADER_BYTES or count == 1:
            return {WARNINGS: text[:_HEADER_BYTES]}
    return {}
