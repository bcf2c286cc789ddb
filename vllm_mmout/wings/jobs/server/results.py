"""What a job has made: its file, its picture and the table of its classes, as they are stored and as they are sent."""

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
from vllm_mmout.serving.response.encode import FormatChoice, encode
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
"""Headers of what a job has made."""
_NO_COLOUR: Final = (0, 0, 0)
"""What a picture shows where a palette has no colour."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """One result of a job; whoever stores the files closes them."""

    file: Encoded
    picture: Encoded | None
    """PNG, its longer side at most `PREVIEW` pixels; None where the result is no picture."""
    classes: tuple[ClassRow, ...] | None
    """None of a result that has none."""
    seconds: str | None = None
    """How long a video is."""
    assumed: tuple[str, ...] = ()
    """What was assumed about the input, in sentences."""

    def close(self) -> None:
        """Let the files go."""
        self.file.close()
        if self.picture is not None:
            self.picture.close()


def make_result(
    output: Any,
    asked: FormatChoice,
    to_response: ToResponse | None,
    folder: Path,
    assumed: tuple[str, ...] = (),
    *,
    budget: AnswerBudget | None = None,
) -> JobResult:
    """Make all that is kept of an output, which is not closed; blocks."""
    budget = budget or AnswerBudget()
    check_memory(output, budget)
    classes, picture = _classes(output), _picture(output)  # before a file is handed over
    seconds = f"{output.duration:.6g}" if isinstance(output, VideoOutput) else None
    return JobResult(encode(output, asked, to_response, folder, budget), picture, classes, seconds, assumed)


def _picture(output: Any) -> Encoded | None:
    if isinstance(output, PolygonsOutput):
        output = output.classes
    if not isinstance(output, ImageOutput | RasterOutput | StructuredOutput | VideoOutput):
        return None
    from PIL.Image import Resampling

    try:
        image = output.image
    except MMOutError:  # of data that was made of no picture
        return None
    longer = max(image.size)
    if longer > PREVIEW:
        width, height = (max(1, round(side * PREVIEW / longer)) for side in image.size)
        # Colours of classes have no mean.
        image = image.resize((width, height), Resampling.NEAREST if _is_coloured(output) else Resampling.BOX)
    return Encoded(encode_picture(image, "png"), "png", size=image.size)


def _is_coloured(output: Any) -> bool:
    """Whether the picture of an output has a colour a class."""
    return (
        isinstance(output, RasterOutput)
        and output.count == 1
        and output.palette is not None
        and are_classes(output.dtype, output.class_names, output.palette)
    )


def _classes(output: Any) -> tuple[ClassRow, ...] | None:
    if isinstance(output, AreasOutput):
        return tuple(_row(one, output.colour_of(one.id)) for one in output.classes)
    raster = output.classes if isinstance(output, PolygonsOutput) else output
    palette = raster.palette if _is_coloured(raster) else None
    if palette is None or raster.dtype.kind != "u" or raster.dtype.itemsize > 2:
        return None
    colours = [tuple(colour) for colour in palette.tolist()]
    return tuple(
        _row(one, colours[one.id] if one.id < len(colours) else _NO_COLOUR) for one in AreasOutput.of(raster).classes
    )


def _row(one: ClassArea, colour: tuple[int, ...]) -> ClassRow:
    return ClassRow(color="#" + bytes(colour).hex(), **one.model_dump())


async def send_result(request: Request, job: SceneJob, runner: SceneRunner) -> Response:
    """The file of a job's result, or its picture, whole or in part."""
    variant = one_of(request, "variant", "result", "preview", usual="result")
    if variant == "preview" and not job.finished:
        return await _growing(request, job, runner)
    output = _output(request, job)
    stored = output.stored if variant == "result" else output.preview
    if stored is None:
        raise ApiError(404, "this result is no picture; ask for variant=result", param="variant")
    entry = await asyncio.to_thread(runner.board.store.find, stored)
    if entry is None:
        raise _removed()
    etag = f"{job.id}-{job.outputs.index(output)}-{variant}"
    return ranged_response(request, entry, etag, PRIVATE, _stem(job.name))


async def send_pixel(request: Request, job: SceneJob, store: ResultStore) -> Response:
    """The values of one pixel of a job's result."""
    output = _output(request, job)
    row, col = (whole_number(request, name, "a whole number from 0") for name in ("row", "col"))
    if output.size is None or output.output_format == "npz":
        raise ApiError(400, "this result has no pixels that can be asked for; fetch it as a whole", param="processor")
    found = await asyncio.to_thread(_values, store.folder / output.stored, row, col)
    named = {row.id: row.name for row in output.classes or ()}
    value = found["values"][0]
    known = output.output_format == "tiff" and value in named
    return JSONResponse({**found, "class": {"id": value, "name": named[value]} if known else None})


async def _growing(request: Request, job: SceneJob, runner: SceneRunner) -> Response:
    """The picture of a job that runs, as its server made it last; another one is made.

    One is made only when somebody asks, since nobody looks at most jobs.
    """
    await asyncio.to_thread(runner.board.ask_preview, job.id)
    try:
        picture = await asyncio.to_thread(runner.preview(job.server, job.id).read_bytes)
    except FileNotFoundError:
        raise ApiError(
            409,
            f"the job is {job.status}, and there is nothing to see of it yet; ask again",
            headers={"Retry-After": "1"},
        ) from None
    etag = f"{job.id}-{zlib.crc32(picture):08x}"
    return ranged_response(request, Encoded(picture, "png"), etag, PRIVATE, _stem(job.name))


def _output(request: Request, job: SceneJob) -> SceneOutput:
    """The result that a request asks for, the first one if it does not say."""
    if job.status != "completed":
        why = f"failed: {job.error.message}" if job.error is not None else f"is {job.status}; ask again when it is done"
        raise ApiError(409, f"there is no result, the job {why}", param="scene_id")
    asked = request.query_params.get("processor")
    for output in job.outputs:
        if asked in (None, output.processor):
            return output
    known = ", ".join(output.processor for output in job.outputs)
    raise ApiError(404, f"the job has no result of {shown(asked)}; it has {known}", param="processor")


def whole_number(request: Request, name: str, what: str, *, least: int = 0, most: int = 10**9, usual: str = "") -> int:
    """A number of a query; ``what`` it must be is for the message."""
    given = request.query_params.get(name, usual)
    if not re.fullmatch(r"\d{1,9}", given, re.ASCII) or not least <= int(given) <= most:
        raise ApiError(400, f"{name} must be {what}, got {shown(given)}", param=name)
    return int(given)


def one_of(request: Request, name: str, *known: str, usual: str) -> Any:
    """A word of a query, which is one of those that are known."""
    given = request.query_params.get(name, usual)
    if given not in known:
        raise ApiError(400, f"{name} must be {' or '.join(known)}, got {shown(given)}", param=name)
    return given


def _values(path: Path, row: int, col: int) -> dict[str, Any]:
    """One pixel of a file, and where it lies."""
    try:
        with open_raster(path) as raster:
            height, width = raster.size
            if row >= height or col >= width:
                raise ApiError(
                    400,
                    f"the result has {height} rows and {width} columns, there is no pixel {row}, {col}",
                    param="row" if row >= height else "col",
                )
            found = raster.read(Window(row, col, 1, 1))
    except InputError as error:
        raise _removed() from error
    place = found.georeference
    x = y = None
    if place is not None and place.transform is not None:
        a, b, c, d, e, f = place.transform  # of this pixel's corner
        x, y = (a + b) / 2 + c, (d + e) / 2 + f
    values = [value.item() for value in found.array[:, 0, 0]]
    return {
        "row": row,
        "col": col,
        # JSON has no number that is not finite.
        "values": [None if value == found.nodata or not math.isfinite(value) else value for value in values],
        "bands": [name or "" for name in found.descriptions],
        "x": x,
        "y": y,
        "crs": None if place is None else place.crs,
    }


def _stem(name: str) -> str:
    """What a client's file of the result is called: as its input."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name.rpartition(".")[0] or name, flags=re.ASCII)[:100] or "result"


def _removed() -> ApiError:
    return ApiError(404, "the result was removed to make room for newer ones; send the scene again", param="scene_id")
