"""What a job has made: its file, its picture, and the values of its pixels."""

from __future__ import annotations

import asyncio
import math
import re
import zlib
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import JSONResponse, Response

from vllm_mmout.errors import InputError
from vllm_mmout.raster.opened import open_raster
from vllm_mmout.raster.window import Window
from vllm_mmout.serving.encoded import Encoded
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.field_types import shown
from vllm_mmout.serving.ranges import ranged_response

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from vllm_mmout.serving.scenes.record import SceneJob, SceneOutput
    from vllm_mmout.serving.scenes.runner import SceneRunner
    from vllm_mmout.serving.store import ResultStore

_VARIANTS: Final = ("result", "preview")
_HEADERS: Final = {"Cache-Control": "private, no-cache"}
_LARGEST: Final = 9
"""Digits of a row or a column."""


async def sent(request: Request, job: SceneJob, runner: SceneRunner) -> Response:
    """The file of a job's result, or its picture, whole or in part.

    Raises:
        ApiError: the job is not finished or failed (409), has no such result (404), or the query is wrong (400).

    """
    variant = request.query_params.get("variant", "result")
    if variant not in _VARIANTS:
        raise ApiError(400, f"variant must be result or preview, got {shown(variant)}", param="variant")
    if variant == "preview" and not job.finished:
        return await _growing(request, job, runner)
    output = _output(request, job)
    stored = output.stored if variant == "result" else output.preview
    if stored is None:
        raise ApiError(404, "this result is no picture; ask for variant=result", param="variant")
    entry = await asyncio.to_thread(runner.board.store.find, stored)
    if entry is None:
        raise _gone()
    return await _ranged(request, entry, f"{job.id}-{job.outputs.index(output)}-{variant}", job)


async def pixel(request: Request, job: SceneJob, store: ResultStore) -> Response:
    """The values of one pixel of a job's result.

    Raises:
        ApiError: as `sent`, or the result has no such pixel (400).

    """
    output = _output(request, job)
    row, col = (_place(request, name) for name in ("row", "col"))
    if output.size is None or output.output_format == "npz":
        raise ApiError(400, "this result has no pixels that can be asked for; fetch it as a whole", param="processor")
    found = await asyncio.to_thread(_values, store.folder / output.stored, row, col)
    named = {row.id: row.name for row in output.classes or ()}
    value = found["values"][0]
    known = output.output_format == "tiff" and value in named
    return JSONResponse({**found, "class": {"id": value, "name": named[value]} if known else None})


async def _growing(request: Request, job: SceneJob, runner: SceneRunner) -> Response:
    """The picture of a job that runs, as its server made it last; another one is made."""
    await asyncio.to_thread(runner.board.ask_preview, job.id)
    picture = await asyncio.to_thread(_read, runner.preview(job.server, job.id))
    if picture is None:
        raise ApiError(
            409,
            f"the job is {job.status}, and there is nothing to see of it yet; ask again",
            headers={"Retry-After": "1"},
        )
    return await _ranged(request, Encoded(picture, "png"), f"{job.id}-{zlib.crc32(picture):08x}", job)


async def _ranged(request: Request, entry: Encoded, etag: str, job: SceneJob) -> Response:
    try:
        return ranged_response(request, entry, etag, _HEADERS, _stem(job.name))
    except ApiError:
        await asyncio.to_thread(entry.close)
        raise


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


def _place(request: Request, name: str) -> int:
    given = request.query_params.get(name, "")
    if not re.fullmatch(rf"\d{{1,{_LARGEST}}}", given, re.ASCII):
        raise ApiError(400, f"{name} must be a whole number from 0, got {shown(given)}", param=name)
    return int(given)


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
        raise _gone() from error
    place = found.georeference
    x = y = None
    if place is not None and place.transform is not None:
        a, b, c, d, e, f = place.transform  # of this pixel's corner
        x, y = (a + b) / 2 + c, (d + e) / 2 + f
    values = [value.item() for value in found.array[:, 0, 0]]
    return {
        "row": row,
        "col": col,
        "values": [None if _is_nothing(value, found.nodata) else value for value in values],
        "bands": [name or "" for name in found.descriptions],
        "x": x,
        "y": y,
        "crs": None if place is None else place.crs,
    }


def _is_nothing(value: float, nodata: float | None) -> bool:
    """Whether JSON has no such number, or there was no observation."""
    return value == nodata or not math.isfinite(value)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _stem(name: str) -> str:
    """What a client's file of the result is called: as its input."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name.rpartition(".")[0] or name, flags=re.ASCII)[:100] or "result"


def _gone() -> ApiError:
    return ApiError(404, "the result was removed to make room for newer ones; send the scene again", param="scene_id")
