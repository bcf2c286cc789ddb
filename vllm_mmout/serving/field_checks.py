"""What OpenAI's fields may be here, alone and together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm_mmout.params import MOST_PARTIAL_IMAGES
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.field_types import shown

_FORMATS: Final = ("png", "webp", "jpeg", "tiff", "npz", "json")
_OTHER_NAMES = {"jpg": "jpeg", "tif": "tiff", "geotiff": "tiff"}
_CHOICES: Final = {
    "output_format": _FORMATS,
    "background": ("auto", "transparent", "opaque"),
    "response_format": ("b64_json", "url"),
}
_FIXED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "size": (("auto",), "the result has the size of the input"),
    "quality": (("auto", "standard"), "this model has one quality"),
    "n": ((1,), "this model gives the same each time"),
}


def check_fields(fields: dict[str, Any]) -> None:
    """Refuse values of OpenAI's fields that cannot be honoured, alone or together.

    Args:
        fields: what was given, typed; common spellings become ours.

    Raises:
        ApiError: one cannot be honoured (400).

    """
    _check_choices(fields)
    for name, (taken, why) in _FIXED.items():
        if name in fields and fields[name] not in taken:
            only = " or ".join(map(str, taken))
            raise ApiError(400, f"{name} must be {only}, got {shown(fields[name])}: {why}", param=name)
    _check_range(fields, "output_compression", 100)
    _check_range(fields, "partial_images", MOST_PARTIAL_IMAGES)
    _check_together(fields)


def check_formats(fields: dict[str, Any]) -> None:
    """Refuse values of the fields that say what a picture is written as, alone or together.

    Args:
        fields: as of `check_fields`.

    Raises:
        ApiError: one cannot be honoured (400).

    """
    _check_choices(fields)
    _check_range(fields, "output_compression", 100)
    _check_together(fields)


def _check_choices(fields: dict[str, Any]) -> None:
    """Refuse what is none of a few values."""
    if "output_format" in fields:
        spelt = fields["output_format"].lower()
        fields["output_format"] = _OTHER_NAMES.get(spelt, spelt)
    for name, known in _CHOICES.items():
        if fields.get(name, known[0]) not in known:
            raise ApiError(400, f"{name} must be one of {', '.join(known)}, got {shown(fields[name])}", param=name)


def _check_range(fields: Mapping[str, Any], name: str, most: int) -> None:
    if not 0 <= fields.get(name, 0) <= most:
        raise ApiError(400, f"{name} must be 0 to {most}, got {fields[name]}", param=name)


def _check_together(fields: Mapping[str, Any]) -> None:
    """Refuse fields that do not go together; of a format that was not chosen here, whoever chooses it does."""
    chosen = fields.get("output_format")
    if chosen is not None:
        if "output_compression" in fields and chosen not in {"jpeg", "webp"}:
            raise ApiError(
                400,
                f"output_compression is for jpeg and webp, not {chosen}; leave it out",
                param="output_compression",
            )
        background = fields.get("background", "auto")
        if background == "transparent" and chosen not in {"png", "webp"}:
            raise ApiError(
                400, f"{chosen} has no transparent background; choose output_format png or webp", param="background"
            )
        if background == "opaque" and chosen not in {"png", "webp", "jpeg"}:
            raise ApiError(
                400, f"{chosen} has no background; choose output_format png, webp or jpeg", param="background"
            )
    if fields.get("partial_images") and not fields.get("stream"):
        raise ApiError(400, "partial_images are sent as events; send stream=true as well", param="partial_images")
    if fields.get("stream") and fields.get("response_format") == "url":
        raise ApiError(
            400, "events hold the image itself; leave response_format out, or stream", param="response_format"
        )
