"""FormatChoice: what a client wants of the bytes of a result, by fields and the header ``Accept``; and these bytes.

Encoding blocks, for a thread.
"""

from __future__ import annotations

import json
import mimetypes
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import DecodeError, MMOutError, OptionError, SaveError, raise_interrupt
from vllm_mmout.outputs import ImageOutput, PolygonsOutput, RasterOutput, StructuredOutput, VideoOutput
from vllm_mmout.outputs.base import Savable
from vllm_mmout.outputs.formats import FORMATS, listed
from vllm_mmout.outputs.formats.pictures import encode_picture, flattened
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.response.answer_budget import AnswerBudget, check_memory
from vllm_mmout.serving.response.plain import as_json, as_media
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, Encoded, own_folder

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from PIL.Image import Image

    from vllm_mmout.params import OutputParams

    ToResponse: TypeAlias = Callable[[Any], Any]

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
    ones the more precise, then the first. None for the JSON answer.
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
    check_beside(wanted, asked.output_compression, asked.background)
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


def check_beside(name: str, compression: int | None, background: str) -> None:
    """Refuse what a format, or an author's own media type, cannot honour: quality, and the background of a picture."""
    form = FORMATS.get(name)
    can = {
        kind: [known for known, one in FORMATS.items() if getattr(one, kind)]
        for kind in ("lossy", "transparent", "picture")
        if not getattr(form, kind, False)
    }
    if compression is not None and "lossy" in can:
        message = f"output_compression is for {listed(can['lossy'], 'and')}, not {name}; leave it out"
        raise OptionError(message, param="output_compression")
    if background == "transparent" and "transparent" in can:
        message = f"{name} has no transparent background; choose output_format {listed(can['transparent'])}"
        raise OptionError(message, param="background")
    if background == "opaque" and "picture" in can:
        message = f"{name} has no background; choose output_format {listed(can['picture'])}"
        raise OptionError(message, param="background")


def known_formats(formats: Mapping[str, str]) -> str:
    """The formats of a result, by the words of the field ``output_format``."""
    has = dict.fromkeys(formats.values())
    return ", ".join([name for name in FORMATS if name in has] or has)


def _wanted(header: str) -> list[str]:
    """The media types of a header, the one that is wanted most first, without those that are refused."""
    weighted = []
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        weight = next((value.strip() for key, _, value in pairs if key.strip() == "q"), "1")
        if name and _WEIGHT.fullmatch(weight) and float(weight) > 0:
            weighted.append((-float(weight), name.count("*"), name))
    return [name for _, _, name in sorted(weighted, key=lambda one: one[:2])]


_FORMATS = {media_type: name for name, media_type in MEDIA_TYPES.items()}
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(;[\x20-\x7e]*)?", re.ASCII)


def encode(
    output: Any,
    asked: FormatChoice,
    to_response: ToResponse | None = None,
    folder: Path | None = None,
    budget: AnswerBudget | None = None,
) -> Encoded:
    """Return the bytes of an output, if they are within the budget of its answer.

    A raster on disk as GeoTIFF gives its own file, and polygons are written to a file
    as they are traced. Neither counts in the budget. The output is not closed.
    """
    budget = budget or AnswerBudget()
    budget.check(0, "the result")
    if to_response is None:
        output = as_media(output, budget)
    if not isinstance(output, Savable) or not output.formats:
        return _by_author(output, asked, to_response or partial(as_json, budget=budget), budget)
    name = chosen_format(output.formats, asked)
    check_memory(output, budget, name)
    try:
        if name in PICTURES and isinstance(output, ImageOutput | RasterOutput | StructuredOutput):
            flat = asked.flat or isinstance(output, RasterOutput)
            return _picture(output.image, name, asked, flat=flat, budget=budget)
        return _file(output, name, asked, folder, budget)
    except SaveError as error:
        if isinstance(error.__cause__, OSError) and name not in PICTURES:
            what = error.__cause__.strerror or type(error.__cause__).__name__
            raise SaveError(f"the result cannot be written on the server: {what}") from error.__cause__
        fact = str(error).rpartition("; ")[0] or str(error)
        raise OptionError(
            f"{fact}; this result can be {known_formats(output.formats)}", param="output_format"
        ) from error


def response_of(processor: Any, params: OutputParams) -> ToResponse | None:
    """The method ``to_response(output, params)`` of a processor for one request, None where it has none."""
    method = getattr(processor, "to_response", None)
    return None if method is None else lambda output: method(output, params)


def _picture(image: Image, name: str, asked: FormatChoice, *, flat: bool, budget: AnswerBudget) -> Encoded:
    """A picture file."""
    if asked.background == "opaque":
        image = flattened(image, "white")
    elif name == "jpeg" and flat:
        image = flattened(image)
    quality = asked.output_compression
    background = "transparent" if "A" in image.getbands() else "opaque"
    content = encode_picture(image, name, None if quality is None else max(1, quality))
    budget.take(len(content), f"a picture as {name}")
    return Encoded(content, name, size=image.size, background=background)


def _file(output: Savable, name: str, asked: FormatChoice, parent: Path | None, budget: AnswerBudget) -> Encoded:
    """A file as `save` makes it: on disk where it may be large, else in memory."""
    size = size_of(output, name)
    suffix = next(suffix for suffix, known in output.formats.items() if known == name)
    media_type = FORMATS[name].media_type if name in FORMATS else mimetypes.guess_type(f"result{suffix}")[0]
    quality = {} if asked.output_compression is None else {"quality": max(1, asked.output_compression)}
    if not isinstance(output, StoredRaster | PolygonsOutput):
        buffer = budget.buffer(f"{type(output).__name__} as {name}")
        output.write_to(buffer, name, **quality)
        budget.take(buffer.tell(), f"{type(output).__name__} as {name}")
        return Encoded(buffer.getvalue(), name, media_type=media_type, size=size)
    folder = own_folder(parent)
    try:
        file = folder / f"result{suffix}"
        output.save(file)
        return Encoded(file, name, media_type=media_type, size=size)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def size_of(output: Savable, name: str) -> tuple[int, int] | None:
    """(width, height) of a result that is pixels in a format."""
    raster = output.classes if isinstance(output, PolygonsOutput) and name == "tiff" else output
    return (raster.width, raster.height) if isinstance(raster, ImageOutput | RasterOutput | VideoOutput) else None


def _by_author(output: Any, asked: FormatChoice, to_response: ToResponse, budget: AnswerBudget) -> Encoded:
    """What a processor makes of an output that is none of our classes."""
    try:
        given = to_response(output)
    except MMOutError:  # says itself what is wrong
        raise
    except BaseException as error:  # a SystemExit too: it would end the server
        raise_interrupt(error)
        raise DecodeError(f"to_response raised {type(error).__name__} for a {type(output).__name__}") from error
    content, media_type = _content(given)
    budget.take(len(content), f"{type(output).__name__} as {media_type}")
    name = _FORMATS.get(media_type.partition(";")[0].strip().lower(), "bin")
    if agreed(asked) not in (None, name):
        what = asked.output_format or asked.accept
        raise OptionError(f"this result cannot be {what!r}; it is {media_type}, leave it out", param="output_format")
    check_beside(media_type, asked.output_compression, asked.background)
    return Encoded(content, name, media_type=media_type)


def _content(given: Any) -> tuple[bytes, str]:
    """The bytes and the media type of what ``to_response`` returned."""
    wants = "return (bytes, media type), or what JSON can hold"
    if isinstance(given, bytes | bytearray | memoryview):
        raise DecodeError(f"to_response returned bytes without a media type; {wants}")
    if isinstance(given, tuple) and given and isinstance(given[0], bytes | bytearray | memoryview):
        content, media_type = given if len(given) == 2 else (b"", None)
        if not isinstance(media_type, str) or not _MEDIA_TYPE.fullmatch(media_type):
            raise DecodeError(f"to_response returned bytes with the media type {given[1:]!r:.100}; {wants}")
        return bytes(content), media_type
    try:
        return json.dumps(given, allow_nan=False, separators=(",", ":")).encode(), MEDIA_TYPES["json"]
    except (TypeError, ValueError, RecursionError) as error:
        raise DecodeError(f"to_response returned {type(given).__name__} that is no JSON: {error}; {wants}") from error
