"""The results of a job: how the file, its preview and the table of classes are made, stored and sent to clients."""

from __future__ import annotations

import asyncio
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response

from vllm_mmout.errors import InputError, MMOutError
from vllm_mmout.geo import Window, are_classes, open_raster
from vllm_mmout.messages import shown
from vllm_mmout.outputs import ImageOutput, PolygonsOutput, RasterOutput, StructuredOutput, VideoOutput
from vllm_mmout.outputs.areas import AreasOutput, ClassArea
from vllm_mmout.outputs.formats.pictures import encode_picture
from vllm_mmout.outputs.rendering import PREVIEW
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.response.answer_budget import AnswerBudget, check_memory
from vllm_mmout.serving.response.encode import encode
from vllm_mmout.serving.response.format_choice import FormatChoice
from vllm_mmout.serving.response.ranges import ranged_response
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.wings.jobs.server.job import ClassRow

if TYPE_CHECKING:
    from starlette.requests import Request

    from vllm_mmout.serving.response.encode import ToResponse
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.wings.jobs.server.job import SceneJob, SceneOutput
    from vllm_mmout.wings.jobs.server.runner import SceneRunner

PRIVATE: Final = {"Cache-Control": "private, no-cache"}
"""Cache headers of responses with the result of a job."""
_NO_COLOUR: Final = (0, 0, 0)
"""RGB colour of a class that is missing in the palette."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """One result of a job, before it is stored. The code that stores the files closes them."""

    file: Encoded
    picture: Encoded | None
    """Preview as PNG, its longer side at most `PREVIEW` pixels. None if the result cannot be drawn."""
    classes: tuple[ClassRow, ...] | None
    """Classes of the result, or None if it has no classes."""
    seconds: str | None = None
    """Length of a video in seconds."""
    assumed: tuple[str, ...] = ()
    """Assumptions that were made about the input, as sentences."""

    def close(self) -> None:
        """Close the file and the preview."""
        self.file.close()
        if self.picture is not None:
            self.picture.close()


def make_result(
    output: Any,
    file_format: FormatChoice,
    to_response: ToResponse | None,
    folder: Path,
    assumed: tuple[str, ...] = (),
    *,
    budget: AnswerBudget | None = None,
) -> JobResult:
    """Encode an output as a file, and make its preview and its table of classes. Blocks.

    Args:
        output: the output of a processor. It is not closed.
        file_format: the format of the file.
        to_response: converts the output into a response, or None to write a file.
        folder: folder for temporary files.
        assumed: assumptions about the input, as sentences.
        budget: limit of the bytes of the result in memory. None: the default of ``--mmout-max-answer``.

    """
    budget = budget or AnswerBudget()
    check_memory(output, budget)
    classes, picture = _classes(output), _picture(output)  # first, since `encode` may take the output's file away
    seconds = f"{output.duration:.6g}" if isinstance(output, VideoOutput) else None
    return JobResult(encode(output, file_format, to_response, folder, budget), picture, classes, seconds, assumed)


def _picture(output: Any) -> Encoded | None:
    if isinstance(output, PolygonsOutput):
        output = output.classes
    if not isinstance(output, ImageOutput | RasterOutput | StructuredOutput | VideoOutput):
        return None
    from PIL.Image import Resampling

    try:
        image = output.image
    except MMOutError:  # structured data whose input was not a picture
        return None
    longer = max(image.size)
    if longer > PREVIEW:
        width, height = (max(1, round(side * PREVIEW / longer)) for side in image.size)
        # The mean of the colours of two classes would be the colour of neither.
        image = image.resize((width, height), Resampling.NEAREST if _is_coloured(output) else Resampling.BOX)
    return Encoded(encode_picture(image, "png"), "png", size=image.size)


def _is_coloured(output: Any) -> bool:
    """Return whether the picture of an output shows each class in its own colour."""
    return (
        isinstance(output, RasterOutput)
        and output.count == 1
        and output.palette is not None
        and are_classes(output.dtype, output.class_names, output.palette)
    )


def _classes(output: Any) -> tuple[ClassRow, ...] | None:
    if isinstance(output, AreasOutput):
        return tuple(_row(area, output.colour_of(area.id)) for area in output.classes)
    raster = output.classes if isinstance(output, PolygonsOutput) else output
    palette = raster.palette if _is_coloured(raster) else None
    if palette is None or raster.dtype.kind != "u" or raster.dtype.itemsize > 2:
        return None
    colours = [tuple(colour) for colour in palette.tolist()]
    return tuple(
        _row(area, colours[area.id] if area.id < len(colours) else _NO_COLOUR)
        for area in AreasOutput.of(raster).classes
    )


def _row(area: ClassArea, colour: tuple[int, ...]) -> ClassRow:
    return ClassRow(color="#" + bytes(colour).hex(), **area.model_dump())


async def send_result(request: Request, job: SceneJob, runner: SceneRunner) -> Response:
    """Send the file of a job's result, or its preview, whole or the byte range that the request asks for."""
    variant = one_of(request, "variant", "result", "preview", usual="result")
    if variant == "preview" and not job.finished:
        return await _growing(request, job, runner)
    output = _output(request, job)
    stored = output.stored if variant == "result" else output.preview
    if stored is None:
        raise ApiError(404, "this result has no preview; ask for variant=result", param="variant")
    entry = await asyncio.to_thread(runner.board.store.find, stored)
    if entry is None:
        raise _removed()
    etag = f"{job.id}-{job.outputs.index(output)}-{variant}"
    return ranged_response(request, entry, etag, PRIVATE, _stem(job.name))


async def send_pixel(request: Request, job: SceneJob, store: ResultStore) -> Response:
    """Send the values, coordinates and class of one pixel of a job's result as JSON."""
    output = _output(request, job)
    row, col = (whole_number(request, name, "a whole number from 0") for name in ("row", "col"))
    if output.size is None or output.output_format == "npz":
        raise ApiError(400, "single pixels of this result cannot be read; fetch the whole result", param="processor")
    pixel = await asyncio.to_thread(_values, store.folder / output.stored, row, col)
    class_names = {row.id: row.name for row in output.classes or ()}
    value = pixel["values"][0]
    has_class = output.output_format == "tiff" and value in class_names
    return JSONResponse({**pixel, "class": {"id": value, "name": class_names[value]} if has_class else None})


async def _growing(request: Request, job: SceneJob, runner: SceneRunner) -> Response:
    """Send the latest preview of a running job, and ask the job's server for a newer preview.

    Previews are made only on request, since nobody looks at most jobs while they run.
    """
    await asyncio.to_thread(runner.board.ask_preview, job.id)
    try:
        picture = await asyncio.to_thread(runner.preview(job.server, job.id).read_bytes)
    except FileNotFoundError:
        raise ApiError(
            409,
            f"the job is {job.status} and has no preview yet; ask again",
            headers={"Retry-After": "1"},
        ) from None
    etag = f"{job.id}-{zlib.crc32(picture):08x}"
    return ranged_response(request, Encoded(picture, "png"), etag, PRIVATE, _stem(job.name))


def _output(request: Request, job: SceneJob) -> SceneOutput:
    """Return the result of the processor that the query names, or the first result if the query names no processor."""
    if job.status != "completed":
        why = f"failed: {job.error.message}" if job.error is not None else f"is {job.status}; ask again when it is done"
        raise ApiError(409, f"there is no result because the job {why}", param="scene_id")
    processor = request.query_params.get("processor")
    for output in job.outputs:
        if processor in (None, output.processor):
            return output
    processors = ", ".join(output.processor for output in job.outputs)
    raise ApiError(
        404,
        f"the job has no result of the processor {shown(processor)}; it has results of {processors}",
        param="processor",
    )


def whole_number(
    request: Request, name: str, expected: str, *, least: int = 0, most: int = 10**9, usual: str = ""
) -> int:
    """Return a query parameter as an integer, or raise an ApiError (400). ``expected`` describes it in the message."""
    text = request.query_params.get(name, usual)
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not least <= int(text) <= most:
        raise ApiError(400, f"{name} must be {expected}, got {shown(text)}", param=name)
    return int(text)


def one_of(request: Request, name: str, *choices: str, usual: str) -> Any:
    """Return a query parameter that must be one of ``choices``, or raise an ApiError (400)."""
    choice = request.query_params.get(name, usual)
    if choice not in choices:
        raise ApiError(400, f"{name} must be {' or '.join(choices)}, got {shown(choice)}", param=name)
    return choice


def _values(path: Path, row: int, col: int) -> dict[str, Any]:
    """Read one pixel of a raster file: its values, and the coordinates of its centre with their CRS."""
    try:
        with open_raster(path) as raster:
            height, width = raster.size
            if row >= height or col >= width:
                raise ApiError(
                    400,
                    f"the result has {height} rows and {width} columns, so it does not have a pixel {row}, {col}",
                    param="row" if row >= height else "col",
                )
            pixel = raster.read(Window(row, col, 1, 1))
    except InputError as error:
        raise _removed() from error
    georeference = pixel.georeference
    x = y = None
    if georeference is not None and georeference.transform is not None:
        a, b, c, d, e, f = georeference.transform  # maps to the pixel's corner
        x, y = (a + b) / 2 + c, (d + e) / 2 + f
    values = [value.item() for value in pixel.array[:, 0, 0]]
    return {
        "row": row,
        "col": col,
        # JSON cannot represent NaN and infinity.
        "values": [None if value == pixel.nodata or not math.isfinite(value) else value for value in values],
        "bands": [name or "" for name in pixel.descriptions],
        "x": x,
        "y": y,
        "crs": None if georeference is None else georeference.crs,
    }


def _stem(name: str) -> str:
    """Return the name, without suffix, under which a client saves the result: that of the input, in ASCII."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name.rpartition(".")[0] or name, flags=re.ASCII)[:100] or "result"


def _removed() -> ApiError:
    return ApiError(404, "the result was removed to make room for newer ones; send the scene again", param="scene_id")
