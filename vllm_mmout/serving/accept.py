"""The header ``Accept``: which bare format it asks for, instead of the JSON answer."""

from __future__ import annotations

import re

from vllm_mmout.serving.encoded import MEDIA_TYPES
from vllm_mmout.serving.errors import ApiError

PICTURE = "image"
"""What ``image/*`` asks for: the usual picture of a result."""

_JSON = frozenset({"*/*", "application/*", "application/json", "text/event-stream"})
"""What is asked for by those who take the JSON answer, or the events of a stream."""
_KNOWN = {media_type: name for name, media_type in MEDIA_TYPES.items() if name != "json"} | {
    "image/*": PICTURE,
    "image/jpg": "jpeg",
}
_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?", re.ASCII)


def accepted(header: str | None) -> str | None:
    """The format that a client wants as bare bytes.

    Of the media types that it names (RFC 9110, 12.5.1), the one with the highest weight that can be served; of equal
    ones the more precise, then the first.

    Args:
        header: the header's value, joined by commas where it came several times; None without one.

    Returns:
        A format of `MEDIA_TYPES`, `PICTURE`, or None for the JSON answer.

    Raises:
        ApiError: none of them can be served (406).

    """
    if header is None or not header.strip():
        return None
    for name in _wanted(header):
        if name in _JSON:
            return None
        if name in _KNOWN:
            return _KNOWN[name]
    raise ApiError(
        406,
        f"Accept asks for {header[:200]!r}; the answer can be application/json, {', '.join(_KNOWN)}",
        param="Accept",
    )


def _wanted(header: str) -> list[str]:
    """The media types of a header, the one that is wanted most first, without those that are refused."""
    weighted = []
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = _weight(parameters)
        if name and weight > 0:
            weighted.append((-weight, name.count("*"), name))
    return [name for _, _, name in sorted(weighted, key=lambda one: one[:2])]


def _weight(parameters: list[str]) -> float:
    """The weight of a media type: 1 where none is given, 0 where it is none."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return float(value) if _WEIGHT.fullmatch(value.strip()) else 0.0
    return 1.0
