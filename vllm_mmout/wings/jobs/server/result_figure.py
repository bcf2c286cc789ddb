"""Draw a figure of a job's result from the stored GeoTIFF: a map with legend, scale bar and north arrow."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import TYPE_CHECKING, Final

import numpy as np
from starlette.responses import Response

from vllm_mmout.errors import InputError
from vllm_mmout.outputs.saved import saved_metadata
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.wings.jobs.server.result_responses import PRIVATE, chosen_output, removed_error, stem

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from vllm_mmout.wings.jobs.server.job import SceneJob, SceneOutput
    from vllm_mmout.wings.jobs.server.runner import SceneRunner

MOST_PIXELS: Final = 1 << 26
"""Maximum number of pixels of a result that the server draws as a figure, because drawing reads all pixels."""


async def send_figure(request: Request, job: SceneJob, runner: SceneRunner) -> Response:
    """Draw a job's result as a map with legend, scale bar and north arrow, and send this figure as PNG.

    Drawing runs in a thread. Only a few figures and input previews are made at once, because each needs much memory.
    """
    output = chosen_output(request, job)
    if output.output_format != "tiff" or output.size is None:
        raise ApiError(
            400,
            f"a figure is made of a raster as GeoTIFF, and this result is {output.output_format}; leave output_format"
            " out in the job, or draw the result in Python with result.figure()",
            param="processor",
        )
    width, height = map(int, output.size.split("x"))
    if width * height > MOST_PIXELS:
        raise ApiError(
            400,
            f"the result has {width * height} pixels, and the server draws figures of at most {MOST_PIXELS}; fetch the"
            " result and draw it by vllm-mmout figure, or send a part of the scene with window or bbox",
            param="processor",
        )
    async with runner.previews:
        png = await asyncio.to_thread(_drawn, runner.board.store.folder / output.stored, output, job)
    name = f'inline; filename="{stem(job.name_of(output))}-{output.processor}-figure.png"'
    return Response(png, media_type="image/png", headers={**PRIVATE, "Content-Disposition": name})


def _drawn(path: Path, output: SceneOutput, job: SceneJob) -> bytes:
    """Draw a stored result as a map with legend and scale bar, and return it as PNG. The call blocks."""
    file = BytesIO()
    try:
        _raster(path, output).figure(title=stem(job.name_of(output))).savefig(file, format="png")
    except ModuleNotFoundError as error:
        raise ApiError(400, f"this server draws no figures: {error}; ask its operator, or draw in Python") from error
    except (InputError, FileNotFoundError) as error:
        raise removed_error() from error
    return file.getvalue()


def _raster(path: Path, output: SceneOutput) -> StoredRaster:
    """Return the raster of a stored result. Its class names and colours come from ``output``."""
    known = saved_metadata(path)
    rows = {row.id: row for row in output.classes or ()}
    if rows:
        count = max(rows) + 1
        known["class_names"] = [rows[n].name or f"class {n}" if n in rows else f"class {n}" for n in range(count)]
        colours = [bytes.fromhex(rows[n].color[1:]) if n in rows else bytes(3) for n in range(count)]
        known["palette"] = np.array([list(colour) for colour in colours], np.uint8)
    stored = StoredRaster(path, **known)
    stored.assumed = output.assumed
    return stored
