"""Encode outputs as files in the format that the client requested. All functions here block."""

from __future__ import annotations

import json
import mimetypes
import re
import shutil
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import DecodeError, MMOutError, OptionError, SaveError, raise_interrupt
from vllm_mmout.outputs import ImageOutput, PolygonsOutput, RasterOutput, RasterSeries, StructuredOutput, VideoOutput
from vllm_mmout.outputs.base import Savable
from vllm_mmout.outputs.formats import FORMATS
from vllm_mmout.outputs.formats.pictures import encode_picture, flattened
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.serving.response.answer_budget import AnswerBudget, check_memory
from vllm_mmout.serving.response.format_choice import (
    PICTURES,
    FormatChoice,
    agreed,
    check_beside,
    chosen_format,
    known_formats,
)
from vllm_mmout.serving.response.plain_results import as_json, as_media
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, Encoded, own_folder

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeAlias

    from PIL.Image import Image

    from vllm_mmout.params import OutputParams

    ToResponse: TypeAlias = Callable[[Any], Any]

_FORMATS = {media_type: name for name, media_type in MEDIA_TYPES.items()}
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(;[\x20-\x7e]*)?", re.ASCII)


def encode(
    output: Any,
    choice: FormatChoice,
    to_response: ToResponse | None = None,
    folder: Path | None = None,
    budget: AnswerBudget | None = None,
) -> Encoded:
    """Encode an output in the format of ``choice``, and return the file in memory or on disk.

    A raster on disk as GeoTIFF gives its own file, and polygons are written to a file
    as they are traced. Neither counts in the budget. The output is not closed.
    """
    budget = budget or AnswerBudget()
    budget.check(0, "the result")
    if to_response is None:
        output = as_media(output, budget)
    if not isinstance(output, Savable) or not output.formats:
        return _by_author(output, choice, to_response or partial(as_json, budget=budget), budget)
    name = chosen_format(output.formats, choice)
    check_memory(output, budget, name)
    try:
        if name in PICTURES and isinstance(output, ImageOutput | RasterOutput | StructuredOutput):
            flat = choice.flat or isinstance(output, RasterOutput)
            return _picture(output.image, name, choice, flat=flat, budget=budget)
        return _file(output, name, choice, folder, budget)
    except SaveError as error:
        if isinstance(error.__cause__, OSError) and name not in PICTURES:
            what = error.__cause__.strerror or type(error.__cause__).__name__
            raise SaveError(f"the result cannot be written on the server: {what}") from error.__cause__
        fact = str(error).rpartition("; ")[0] or str(error)
        raise OptionError(
            f"{fact}; this result can be {known_formats(output.formats)}", param="output_format"
        ) from error


def response_of(processor: Any, params: OutputParams) -> ToResponse | None:
    """Return a function that calls the processor's ``to_response`` with ``params``, or None if it lacks the method."""
    method = getattr(processor, "to_response", None)
    return None if method is None else lambda output: method(output, params)


def _picture(image: Image, name: str, choice: FormatChoice, *, flat: bool, budget: AnswerBudget) -> Encoded:
    if choice.background == "opaque":
        image = flattened(image, "white")
    elif name == "jpeg" and flat:
        image = flattened(image)
    quality = choice.output_compression
    background = "transparent" if "A" in image.getbands() else "opaque"
    content = encode_picture(image, name, None if quality is None else max(1, quality))
    budget.take(len(content), f"a picture as {name}")
    return Encoded(content, name, size=image.size, background=background)


def _file(output: Savable, name: str, choice: FormatChoice, parent: Path | None, budget: AnswerBudget) -> Encoded:
    """Encode an output in the format ``name``: a large output as a file in ``parent``, others in memory."""
    size = size_of(output, name)
    suffix = next(suffix for suffix, known in output.formats.items() if known == name)
    media_type = FORMATS[name].media_type if name in FORMATS else mimetypes.guess_type(f"result{suffix}")[0]
    quality = {} if choice.output_compression is None else {"quality": max(1, choice.output_compression)}
    if not isinstance(output, StoredRaster | PolygonsOutput | RasterSeries):
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
    """Return (width, height) in pixels of an output saved as format ``name``. Return None for data without pixels."""
    raster = output.classes if isinstance(output, PolygonsOutput) and name == "tiff" else output
    return (raster.width, raster.height) if isinstance(raster, ImageOutput | RasterOutput | VideoOutput) else None


def _by_author(output: Any, choice: FormatChoice, to_response: ToResponse, budget: AnswerBudget) -> Encoded:
    """Encode an output by calling ``to_response``, a function that the author of an output processor can provide.

    Outputs without file formats of their own are encoded in this way.
    """
    try:
        given = to_response(output)
    except MMOutError:  # its message is for the client
        raise
    except BaseException as error:  # a SystemExit would end the server
        raise_interrupt(error)
        raise DecodeError(f"to_response raised {type(error).__name__} for a {type(output).__name__}") from error
    content, media_type = _content(given)
    budget.take(len(content), f"{type(output).__name__} as {media_type}")
    name = _FORMATS.get(media_type.partition(";")[0].strip().lower(), "bin")
    if agreed(choice) not in (None, name):
        what = choice.output_format or choice.accept
        raise OptionError(f"this result cannot be {what!r}; it is {media_type}, leave it out", param="output_format")
    check_beside(media_type, choice.output_compression, choice.background)
    return Encoded(content, name, media_type=media_type)


def _content(given: Any) -> tuple[bytes, str]:
    """Convert the return value of ``to_response`` to (bytes, media type).

    The value is such a pair, or data to encode as JSON.
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
