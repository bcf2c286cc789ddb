"""FormatChoice: what a client wants of the bytes of a result, by fields and the header ``Accept``; what it gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllm_mmout.errors import OptionError
from vllm_mmout.outputs.formats import FORMATS, listed
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.response.result_files import MEDIA_TYPES

PICTURE = "image"
"""What ``image/*`` asks for: the usual picture of a result."""

_JSON = frozenset({"*/*", "application/*", "application/json", "text/event-stream"})
"""What is asked for by those who take the JSON answer, or the events of a stream."""
_KNOWN = {media_type: name for name, media_type in MEDIA_TYPES.items() if name != "json"} | {
    "image/*": PICTURE,
    "image/jpg": "jpeg",
}
_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?", re.ASCII)
PICTURES = frozenset(name for name, form in FORMATS.items() if form.picture)
"""Formats of whatever can be drawn."""


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """What a client asked of the bytes of a result."""

    output_format: str | None = None
    """A name of `FORMATS`; None: the usual one."""
    output_compression: int | None = None
    """Quality of lossy pictures from 0 to 100, the best; None: the usual one."""
    background: str = "auto"
    """"transparent", "opaque" (white where nothing is known), or "auto": as the result is."""
    accept: str | None = None
    """What `accepted` gave: the format of bare bytes."""
    as_file: bool = False
    """Whether the usual format is the first one of `save` that clients know, as GeoTIFF, rather than a picture."""
    flat: bool = False
    """Whether a JPEG is made of a picture with transparency too, as of a raster's."""

    @property
    def for_preview(self) -> FormatChoice:
        """The same of a preview, which is a picture whatever the result is."""
        if self.output_format in PICTURES:
            return replace(self, accept=None, flat=True)
        return FormatChoice()


def accepted(header: str | None) -> str | None:
    """The format that a client wants as bare bytes.

    Of the media types that it names (RFC 9110, 12.5.1), the one with the highest weight that can be served; of equal
    ones the more precise, then the first.
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


def chosen_format(formats: Mapping[str, str], asked: FormatChoice) -> str:
    """The format that a client gets, checked against all that it asked for."""
    has = set(formats.values())
    wanted = agreed(asked)
    if wanted is None:
        wanted = _usual_file(formats) if asked.as_file else _usual(formats)
    elif wanted == PICTURE:
        wanted = "png"
    elif wanted == "json" and "json" not in has:
        wanted = "geojson"
    if wanted not in has:
        what = asked.output_format or asked.accept
        raise OptionError(f"this result cannot be {what!r}; it can be {known_formats(formats)}", param="output_format")
    check_beside(wanted, asked)
    return wanted


def _usual(formats: Mapping[str, str]) -> str:
    """The format of a result of which nothing is asked: a picture of what is pixels, JSON of data."""
    has = set(formats.values())
    if {"png", "tiff"} <= has:
        return "png"
    return "json" if "json" in has else next(iter(formats.values()))


def _usual_file(formats: Mapping[str, str]) -> str:
    """The same where a file is wanted: the first one, JSON rather than a table."""
    names = list(formats.values())
    return next((name for name in names if name not in FORMATS or FORMATS[name].usual), names[0])


def agreed(asked: FormatChoice) -> str | None:
    """The format that the field and the header ask for."""
    field, header = asked.output_format, asked.accept
    if field is None or header is None or field == header:
        return field or header
    if (field in PICTURES and header == PICTURE) or (field, header) == ("json", "geojson"):
        return header if header == "geojson" else field
    raise OptionError(
        f"output_format asks for {field!r}, the header Accept for {header!r}; send one", param="output_format"
    )


def check_beside(name: str, asked: FormatChoice) -> None:
    """Refuse what a format cannot honour."""
    wrong = unmet(name, asked.output_compression, asked.background)
    if wrong is not None:
        raise OptionError(wrong[1], param=wrong[0])


def unmet(name: str, compression: int | None, background: str) -> tuple[str, str] | None:
    """The field that a format cannot honour, and why; None where it can."""
    form = FORMATS.get(name)
    if compression is not None and (form is None or not form.lossy):
        lossy = listed((known for known, one in FORMATS.items() if one.lossy), "and")
        return "output_compression", f"output_compression is for {lossy}, not {name}; leave it out"
    if background == "transparent" and (form is None or not form.transparent):
        can = listed(known for known, one in FORMATS.items() if one.transparent)
        return "background", f"{name} has no transparent background; choose output_format {can}"
    if background == "opaque" and (form is None or not form.picture):
        can = listed(known for known, one in FORMATS.items() if one.picture)
        return "background", f"{name} has no background; choose output_format {can}"
    return None


def known_formats(formats: Mapping[str, str]) -> str:
    """The formats of a result, by the words of the field ``output_format``."""
    has = dict.fromkeys(formats.values())
    return ", ".join([name for name in FORMATS if name in has] or has)


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
