"""Build HTTP responses with a job's result file, its preview, or the values of one pixel."""

from __future__ import annotations

import asyncio
import math
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Window, open_raster
from vllm_mmout.messages import shown
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.response.ranges import ranged_response
from vllm_mmout.serving.response.result_files import Encoded

if TYPE_CHECKING:
    from starlette.requests import Request

    from vllm_mmout.serving.response.responses import ClosingResponse
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.wings.jobs.server.job import SceneJob, SceneOutput
    from vllm_mmout.wings.jobs.server.runner import SceneRunner

PRIVATE: Final = {"Cache-Control": "private, no-cache"}
"""Response headers that keep shared caches from storing a job's result."""
SELECTORS: Final = ("processor", "day")
"""Query parameters that choose one of several results of a job."""


async def send_result(request: Request, job: SceneJob, runner: SceneRunner) -> Response:
    """Send a job's result file, or the preview of the result if the query has ``variant=preview``."""
    variant = one_of(request, "variant", "result", "preview", usual="result")
    if variant == "preview" and not job.finished:
        return await _unfinished_preview(request, job, runner)
    output = chosen_output(request, job)
    stored = output.stored if variant == "result" else output.preview
    if stored is None:
        raise ApiError(404, "this result has no preview; ask for variant=result", param="variant")
    return await send_stored(request, job, output, runner.board.store, stored)


async def send_stored(
    request: Request, job: SceneJob, output: SceneOutput, store: ResultStore, stored: str
) -> ClosingResponse:
    """Send the result file or the preview file of a job. ``stored`` is the file's name in the result store."""
    entry = await asyncio.to_thread(find_stored, store, stored)
    etag = f"{job.id}-{job.outputs.index(output)}-{'result' if stored == output.stored else 'preview'}"
    return ranged_response(request, entry, etag, PRIVATE, stem(job.name_of(output)))


def find_stored(store: ResultStore, stored: str) -> Encoded:
    """Open a file of the result store. Raise an ApiError (404) if it was removed. The call blocks."""
    entry = store.find(stored)
    if entry is None:
        raise removed_error()
    return entry


async def send_pixel(request: Request, job: SceneJob, store: ResultStore) -> Response:
    """Send the values, coordinates and class of one pixel of a job's result as JSON."""
    output = chosen_output(request, job)
    row, col = (whole_number(request, name, "a whole number from 0") for name in ("row", "col"))
    if output.size is None or output.output_format == "npz":
        raise ApiError(400, "single pixels of this result cannot be read; fetch the whole result", param="processor")
    pixel = await asyncio.to_thread(_pixel_values, store.folder / output.stored, row, col)
    class_names = {row.id: row.name for row in output.classes or ()}
    value = pixel["values"][0]
    has_class = output.output_format == "tiff" and value in class_names
    return JSONResponse({**pixel, "class": {"id": value, "name": class_names[value]} if has_class else None})


async def _unfinished_preview(request: Request, job: SceneJob, runner: SceneRunner) -> Response:
    """Send the latest preview of an unfinished job. Also ask the job's server to make a newer preview.

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
    return ranged_response(request, Encoded(picture, "png"), etag, PRIVATE, stem(job.name))


def chosen_output(request: Request, job: SceneJob) -> SceneOutput:
    """Return the result of a job that matches the query parameters. If several results match, return the first."""
    return chosen_outputs(request, job)[0]


def chosen_outputs(request: Request, job: SceneJob) -> list[SceneOutput]:
    """Return the results of a job that match the query parameters. Raise an ApiError if no result matches.

    The query parameters are `SELECTORS`. An unfinished or failed job also raises an ApiError.
    """
    if job.status != "completed":
        why = f"failed: {job.error.message}" if job.error is not None else f"is {job.status}; ask again when it is done"
        raise ApiError(409, f"there is no result because the job {why}", param="scene_id")
    outputs = list(job.outputs)
    for name in SELECTORS:
        value = request.query_params.get(name)
        if value is None:
            continue
        existing = ", ".join(dict.fromkeys(output.query[name] for output in outputs if name in output.query))
        outputs = [output for output in outputs if output.query.get(name) == value]
        if not outputs:
            has = f"it has results of {existing}" if existing else f"leave {name} out"
            raise ApiError(404, f"the job has no result of the {name} {shown(value)}; {has}", param=name)
    return outputs


def whole_number(
    request: Request, name: str, expected: str, *, least: int = 0, most: int = 10**9, usual: str = ""
) -> int:
    """Parse a query parameter as an integer. Raise an ApiError (400) if the value is invalid.

    The error message says that the parameter must be ``expected``.
    """
    text = request.query_params.get(name, usual)
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not least <= int(text) <= most:
        raise ApiError(400, f"{name} must be {expected}, got {shown(text)}", param=name)
    return int(text)


def one_of(request: Request, name: str, *choices: str, usual: str) -> Any:
    """Return the query parameter ``name``. Raise an ApiError (400) if the value is not one of the allowed choices."""
    choice = request.query_params.get(name, usual)
    if choice not in choices:
        raise ApiError(400, f"{name} must be {' or '.join(choices)}, got {shown(choice)}", param=name)
    return choice


def _pixel_values(path: Path, row: int, col: int) -> dict[str, Any]:
    """Return the values, coordinates and CRS of one pixel of a raster file, for a JSON response."""
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
        raise removed_error() from error
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


def stem(name: str) -> str:
    """Convert ``name`` to a file name for downloads: ASCII characters only, without spaces and without suffix."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name.rpartition(".")[0] or name, flags=re.ASCII)[:100] or "result"


def removed_error() -> ApiError:
    """Return the error for a result whose file was removed from the store."""
    return ApiError(404, "the result was removed to make room for newer ones; send the scene again", param="scene_id")
