"""Choose the file format of a result from the client's fields and ``Accept`` header."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.option import said
from vllm_mmout.outputs.formats import FORMATS, format_named, listed
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.response.result_files import MEDIA_TYPES

PICTURE: Final = "image"
"""Format name for ``Accept: image/*``, where the server chooses the picture format."""
_JSON: Final = frozenset({"*/*", "application/*", "application/json", "text/event-stream"})
"""Media types in the header ``Accept`` that the server answers with JSON or server-sent events."""
_BARE: Final = {media_type: name for name, media_type in MEDIA_TYPES.items() if name != "json"} | {
    "image/*": PICTURE,
    "image/jpg": "jpeg",
}
"""Maps media types in the header ``Accept`` to formats that the server sends as a bare file instead of JSON."""
_WEIGHT: Final = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?", re.ASCII)
PICTURES: Final = frozenset(name for name, form in FORMATS.items() if form.picture)
"""Names of the picture formats, such as "png"."""
SERVERS: Final = ("accept", "as_file", "flat")
"""Fields of `FormatChoice` that the server sets and clients cannot set."""


def _usual_spelling(text: str) -> str:
    form = format_named(text)
    return text if form is None else form.name


class FormatChoice(msgspec.Struct, frozen=True):
    """File format, quality and background that a client requests for a result."""

    output_format: Annotated[
        str | None,
        said("format of the result; by default its usual one.", choices=MEDIA_TYPES, spelling=_usual_spelling),
    ] = None
    output_compression: Annotated[int | None, said("quality of lossy pictures, 100 is the best.", ge=0, le=100)] = None
    background: Annotated[Literal["auto", "transparent", "opaque"], said("of pictures, where nothing is known.")] = (
        "auto"
    )
    accept: str | None = None
    """Format that the header ``Accept`` requests for a bare file, or None for a response in JSON."""
    as_file: bool = False
    """Whether the default format of a result is its main file format, such as GeoTIFF for rasters. If False, the
    default is usually PNG or JSON."""
    flat: bool = False
    """Whether to flatten transparent pictures that are saved as JPEG. Pictures of rasters are always flattened."""

    @property
    def for_preview(self) -> FormatChoice:
        """Return the format of previews: the requested format if it is a picture format, else the default."""
        if self.output_format in PICTURES:
            return FormatChoice(self.output_format, self.output_compression, self.background, flat=True)
        return FormatChoice()


def accepted(header: str | None) -> str | None:
    """Return the format that an ``Accept`` header requests, or None for a JSON response.

    The media type with the highest weight that can be served wins (RFC 9110, 12.5.1). Of media types with equal weights
    the more precise one wins, then the first one.
    """
    if header is None or not header.strip():
        return None
    for media_type in _by_weight(header):
        if media_type in _JSON:
            return None
        if media_type in _BARE:
            return _BARE[media_type]
    raise ApiError(
        406,
        f"Accept asks for {header[:200]!r}; the answer can be application/json, {', '.join(_BARE)}",
        param="Accept",
    )


def chosen_format(formats: Mapping[str, str], choice: FormatChoice) -> str:
    """Return a result's file format: the client's choice or the default. Raise OptionError for an unsupported choice.

    ``formats`` maps the suffixes of the result's files to formats.
    """
    available = set(formats.values())
    name = agreed(choice)
    if name is None:
        name = _usual_file(formats) if choice.as_file else _usual(formats)
    elif name == PICTURE:
        name = "png"
    elif name == "json" and "json" not in available:
        name = "geojson"
    if name not in available:
        value = choice.output_format or choice.accept
        raise OptionError(f"this result cannot be {value!r}; it can be {known_formats(formats)}", param="output_format")
    check_beside(name, choice.output_compression, choice.background)
    return name


def _usual(formats: Mapping[str, str]) -> str:
    """Return the default format of a result in a JSON response: PNG for pixels, JSON for data."""
    available = set(formats.values())
    if {"png", "tiff"} <= available:
        return "png"
    return "json" if "json" in available else next(iter(formats.values()))


def _usual_file(formats: Mapping[str, str]) -> str:
    """Return the default format of a result that is sent as a bare file: the first of its formats except CSV."""
    names = list(formats.values())
    return next((name for name in names if name not in FORMATS or FORMATS[name].usual), names[0])


def agreed(choice: FormatChoice) -> str | None:
    """Return the format in ``output_format`` or ``Accept``, or None. Raise OptionError if the two differ."""
    field, header = choice.output_format, choice.accept
    if field is None or header is None or field == header:
        return field or header
    if (field in PICTURES and header == PICTURE) or (field, header) == ("json", "geojson"):
        return header if header == "geojson" else field
    raise OptionError(
        f"output_format asks for {field!r}, the header Accept for {header!r}; send one", param="output_format"
    )


def check_beside(name: str, compression: int | None, background: str) -> None:
    """Raise OptionError if the format ``name`` does not support this ``compression`` or ``background``.

    ``name`` may also be the media type of a file that an author's ``to_response`` returned.
    """
    form = FORMATS.get(name)
    capable = {
        kind: [known for known, other in FORMATS.items() if getattr(other, kind)]
        for kind in ("lossy", "transparent", "picture")
        if not getattr(form, kind, False)
    }
    if compression is not None and "lossy" in capable:
        message = f"output_compression is for {listed(capable['lossy'], 'and')}, not {name}; leave it out"
        raise OptionError(message, param="output_compression")
    if background == "transparent" and "transparent" in capable:
        message = f"{name} has no transparent background; choose output_format {listed(capable['transparent'])}"
        raise OptionError(message, param="background")
    if background == "opaque" and "picture" in capable:
        message = f"{name} has no background; choose output_format {listed(capable['picture'])}"
        raise OptionError(message, param="background")


def known_formats(formats: Mapping[str, str]) -> str:
    """Join the names of a result's file formats with commas, for an error message."""
    available = dict.fromkeys(formats.values())
    return ", ".join([name for name in FORMATS if name in available] or available)


def _by_weight(header: str) -> list[str]:
    """Return the media types of an ``Accept`` header, highest weight first. Types with weight 0 are left out."""
    weighted = []
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        weight = next((value.strip() for key, _, value in pairs if key.strip() == "q"), "1")
        if name and _WEIGHT.fullmatch(weight) and float(weight) > 0:
            weighted.append((-float(weight), name.count("*"), name))
    return [name for _, _, name in sorted(weighted, key=lambda entry: entry[:2])]
