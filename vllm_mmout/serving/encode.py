"""From the output of a request to the bytes that its client asked for; everything here blocks, for a thread."""

from __future__ import annotations

import json
import mimetypes
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import DecodeError, MMOutError, OptionError, SaveError
from vllm_mmout.outputs import ImageOutput, PolygonsOutput, RasterOutput, StructuredOutput
from vllm_mmout.outputs.base import Savable
from vllm_mmout.outputs.pictures import PICTURE_FORMATS, encode_picture, flattened
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.serving.accept import PICTURE, accepted
from vllm_mmout.serving.encoded import MEDIA_TYPES, Encoded, own_folder

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from PIL.Image import Image

    from vllm_mmout.params import OutputParams

    ToResponse: TypeAlias = Callable[[Any], Any]

__all__ = ["Asked", "accepted", "chosen_format", "encode", "response_of"]

_PICTURES = frozenset(PICTURE_FORMATS.values())
_LOSSY = frozenset({"jpeg", "webp"})
_TRANSPARENT = frozenset({"png", "webp"})
_FORMATS = {media_type: name for name, media_type in MEDIA_TYPES.items()}
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(;[\x20-\x7e]*)?", re.ASCII)
_AT_ONCE = 1 << 28
"""Bytes of pixels of a result on disk that a format may want in memory."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asked of the bytes of a result."""

    output_format: str | None = None
    """"png", "webp", "jpeg", "tiff", "npz", "json"; None: the usual one."""
    output_compression: int | None = None
    """Quality of JPEG and WebP from 0 to 100, the best; None: the usual one."""
    background: str = "auto"
    """"transparent", "opaque" (white where nothing is known), or "auto": as the result is."""
    accept: str | None = None
    """What `vllm_mmout.serving.accept.accepted` gave: the format of bare bytes."""
    as_file: bool = False
    """Whether the usual format is the first one of `save` that clients know, as GeoTIFF, rather than a picture."""
    flat: bool = False
    """Whether a JPEG is made of a picture with transparency too, as of a raster's."""

    @property
    def for_preview(self) -> Asked:
        """The same of a preview, which is a picture whatever the result is."""
        if self.output_format in _PICTURES:
            return replace(self, accept=None, flat=True)
        return Asked()


def encode(output: Any, asked: Asked, to_response: ToResponse | None = None, folder: Path | None = None) -> Encoded:
    """The bytes of an output.

    What is too large for memory is a file: a raster on disk as GeoTIFF hands its own file over, polygons are written
    as they are traced. The output is not closed.

    Args:
        output: what the processor made.
        asked: what the client asked for.
        to_response: of a processor whose outputs are none of `vllm_mmout.outputs`, see `response_of`.
        folder: in which a file is made; None: that of the system for temporary ones.

    Raises:
        OptionError: the result cannot be what was asked for; it says what it can be.
        DecodeError: ``to_response`` failed, or gave something else than it may.
        SaveError: the bytes cannot be stored on this machine.

    """
    if not isinstance(output, Savable) or not output.formats:
        return _by_author(output, asked, to_response)
    name = chosen_format(output.formats, asked)
    try:
        if name in _PICTURES and isinstance(output, ImageOutput | RasterOutput | StructuredOutput):
            return _picture(output.image, name, asked, flat=asked.flat or isinstance(output, RasterOutput))
        return _file(output, name, asked, folder)
    except SaveError as error:
        if isinstance(error.__cause__, OSError) and name not in _PICTURES:
            what = error.__cause__.strerror or type(error.__cause__).__name__
            raise SaveError(f"the result cannot be written on the server: {what}") from error.__cause__
        fact = str(error).rpartition("; ")[0] or str(error)
        raise OptionError(f"{fact}; this result can be {_known(output.formats)}", param="output_format") from error


def chosen_format(formats: Mapping[str, str], asked: Asked) -> str:
    """The format that a client gets, checked against all that it asked for.

    Args:
        formats: of the result: suffix -> format, as `vllm_mmout.outputs.base.Savable.formats`.
        asked: what the client asked for.

    Raises:
        OptionError: the result cannot be that.

    """
    has = set(formats.values())
    wanted = _agreed(asked)
    if wanted is None:
        wanted = _usual_file(formats) if asked.as_file else _usual(formats)
    elif wanted == PICTURE:
        wanted = "png"
    elif wanted == "json" and "json" not in has:
        wanted = "geojson"
    if wanted not in has:
        what = asked.output_format or asked.accept
        raise _refused("output_format", f"this result cannot be {what!r}; it can be {_known(formats)}")
    _check_beside(wanted, asked)
    return wanted


def response_of(processor: Any, params: OutputParams) -> ToResponse | None:
    """The method ``to_response(output, params)`` of a processor for one request, None where it has none."""
    method = getattr(processor, "to_response", None)
    return None if method is None else lambda output: method(output, params)


def _usual(formats: Mapping[str, str]) -> str:
    """The format of a result of which nothing is asked: a picture of what is pixels, JSON of data."""
    has = set(formats.values())
    if {"png", "tiff"} <= has:
        return "png"
    return "json" if "json" in has else next(iter(formats.values()))


def _usual_file(formats: Mapping[str, str]) -> str:
    """The same where a file is wanted: the first one that clients know."""
    return next((name for name in formats.values() if name in MEDIA_TYPES), next(iter(formats.values())))


def _agreed(asked: Asked) -> str | None:
    """The format that the field and the header ask for.

    Raises:
        OptionError: they ask for two.

    """
    field, header = asked.output_format, asked.accept
    if field is None or header is None or field == header:
        return field or header
    if (field in _PICTURES and header == PICTURE) or (field, header) == ("json", "geojson"):
        return header if header == "geojson" else field
    raise _refused("output_format", f"output_format asks for {field!r}, the header Accept for {header!r}; send one")


def _check_beside(name: str, asked: Asked) -> None:
    """Refuse what a format cannot honour."""
    if asked.output_compression is not None and name not in _LOSSY:
        raise _refused("output_compression", f"output_compression is for jpeg and webp, not {name}; leave it out")
    if asked.background == "transparent" and name not in _TRANSPARENT:
        raise _refused("background", f"{name} has no transparent background; choose output_format png or webp")
    if asked.background == "opaque" and name not in _PICTURES:
        raise _refused("background", f"{name} has no background; choose output_format png, webp or jpeg")


def _known(formats: Mapping[str, str]) -> str:
    """The formats of a result, by the words of the field ``output_format``."""
    has = {"json" if name == "geojson" else name for name in formats.values()}
    return ", ".join([name for name in MEDIA_TYPES if name in has] or list(formats.values()))


def _picture(image: Image, name: str, asked: Asked, *, flat: bool) -> Encoded:
    """A picture file.

    Args:
        image: the picture.
        name: its format.
        asked: what the client asked for.
        flat: whether a JPEG without transparency is made of a picture with it, as `RasterOutput.save` does.

    """
    if asked.background == "opaque":
        image = flattened(image, "white")
    elif name == "jpeg" and flat:
        image = flattened(image)
    quality = asked.output_compression
    options = {} if quality is None else {"quality": max(1, quality)}
    background = "transparent" if "A" in image.getbands() else "opaque"
    return Encoded(encode_picture(image, name, options), name, size=image.size, background=background)


def _file(output: Savable, name: str, asked: Asked, parent: Path | None) -> Encoded:
    """A file as `save` makes it: on disk where it may be large, else in memory."""
    size = None if name == "geojson" else _size(output)
    suffix = next(suffix for suffix, known in output.formats.items() if known == name)
    media_type = MEDIA_TYPES.get(name) or mimetypes.guess_type(f"result{suffix}")[0]
    quality = {} if asked.output_compression is None else {"quality": max(1, asked.output_compression)}
    if not isinstance(output, StoredRaster | PolygonsOutput):
        return Encoded(output.to_bytes(name, **quality), name, media_type=media_type, size=size)
    if name == "npz" and isinstance(output, StoredRaster):
        _check_memory(output)
    folder = own_folder(parent)
    try:
        return Encoded(output.save(folder / f"result{suffix}"), name, media_type=media_type, size=size)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _size(output: Savable) -> tuple[int, int] | None:
    """(width, height) of a result that is pixels."""
    raster = output.classes if isinstance(output, PolygonsOutput) else output
    return (raster.width, raster.height) if isinstance(raster, ImageOutput | RasterOutput) else None


def _check_memory(raster: StoredRaster) -> None:
    size = raster.count * raster.height * raster.width * raster.dtype.itemsize
    if size > _AT_ONCE:
        raise _refused(
            "output_format",
            f"npz is made in memory, this result has {size >> 20} MiB of pixels, more than {_AT_ONCE >> 20};"
            " choose output_format tiff",
        )


def _by_author(output: Any, asked: Asked, to_response: ToResponse | None) -> Encoded:
    """What a processor makes of an output that is none of our classes."""
    if to_response is None:
        raise OptionError(
            f"the processor returns {type(output).__name__}, which has no form over HTTP; choose another processor, or"
            " define its to_response(output, params), which returns (bytes, media type) or JSON",
            param="processor",
        )
    try:
        given = to_response(output)
    except MMOutError:  # says itself what is wrong
        raise
    except Exception as error:
        raise DecodeError(f"to_response raised {type(error).__name__} for a {type(output).__name__}") from error
    content, media_type = _content(given)
    name = _FORMATS.get(media_type.partition(";")[0].strip().lower(), "bin")
    if _agreed(asked) not in (None, name):
        what = asked.output_format or asked.accept
        raise _refused("output_format", f"this result cannot be {what!r}; it is {media_type}, leave it out")
    if asked.output_compression is not None or asked.background != "auto":
        _check_beside(media_type, asked)
    return Encoded(content, name, media_type=media_type)


def _content(given: Any) -> tuple[bytes, str]:
    """The bytes and the media type of what ``to_response`` returned.

    Raises:
        DecodeError: it is neither bytes with a media type nor JSON.

    """
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


def _refused(param: str, message: str) -> OptionError:
    return OptionError(message, param=param)
