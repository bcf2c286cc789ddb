"""Find the results of scene jobs. Other extension packages make map tiles and STAC items from the results."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.image_routes import service_of
from vllm_mmout.serving.result_addresses import FinishedResult, ResultAddress, ResultFile, geotiff_only
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.wings.jobs.server.job import PREFIX
from vllm_mmout.wings.jobs.server.job_lookup import SCENE_KIND, find_job
from vllm_mmout.wings.jobs.server.result_responses import SELECTORS, chosen_outputs, find_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.wings.jobs.server.job import SceneJob, SceneOutput
    from vllm_mmout.wings.jobs.server.runner import SceneRunner

_PATH: Final = "/v1/scenes"
_TIFF: Final = "tiff"
_PAGE: Final = 100
"""Number of jobs that one query reads from the jobs table."""


async def _find(request: Request, *, growing: bool = False) -> ResultFile:
    """Return the GeoTIFF file of a job's result. The URL path of the request names the job.

    With ``growing=True``, return the latest preview if the job is unfinished.
    """
    runner = _runner(request)
    job = await find_job(request, runner.board, SCENE_KIND)
    if growing and not job.finished:
        return await _growing(request, job, runner)
    return await _checked(request, job, runner.board.store)


async def _growing(request: Request, job: SceneJob, runner: SceneRunner) -> ResultFile:
    """Return the latest preview of an unfinished job as GeoTIFF. Also ask the job's server for a newer preview."""
    wait = {"Retry-After": "1"}
    if chosen := [name for name in SELECTORS if name in request.query_params]:
        raise ApiError(
            409,
            f"the job is {job.status}, and only its first result is shown meanwhile; leave {' and '.join(chosen)} out,"
            " or ask again when the job is completed",
            headers=wait,
            param=chosen[0],
        )
    await asyncio.to_thread(runner.board.ask_preview, job.id)
    preview = runner.preview(job.server, job.id)
    geotiff = preview.with_suffix(".tif")
    if await asyncio.to_thread(geotiff.exists):
        return ResultFile(path=geotiff, growing=True)
    if await asyncio.to_thread(preview.exists):
        raise ApiError(400, "the result has no place on a map; send an input that has a transform and a CRS")
    raise ApiError(409, f"the job is {job.status} and has no picture yet; ask again", headers=wait, param="scene_id")


async def _checked(request: Request, job: SceneJob, store: ResultStore) -> ResultFile:
    """Return the GeoTIFF of a finished job. Raise an ApiError if the file was removed or is not a GeoTIFF."""
    output = _chosen(request, job)
    file = ResultFile(path=store.folder / output.stored, ttl=store.ttl)
    geotiff_only(output.media_type, file, "processor")
    (await asyncio.to_thread(find_stored, store, output.stored)).close()
    return file


def _chosen(request: Request, job: SceneJob) -> SceneOutput:
    """Return the result of a job that matches the query parameters. If several results match, prefer a GeoTIFF."""
    outputs = chosen_outputs(request, job)
    return next((output for output in outputs if output.output_format == _TIFF), outputs[0])


async def _finished(request: Request) -> FinishedResult:
    """Return the finished result that the URL of a request selects. Raise an ApiError if the job is unfinished."""
    runner = _runner(request)
    job = await find_job(request, runner.board, SCENE_KIND)
    file = await _checked(request, job, runner.board.store)
    return _described(job, _chosen(request, job), file)


async def _newest(request: Request, most: int) -> Sequence[FinishedResult]:
    """Return the GeoTIFFs of completed jobs, newest first, up to ``most``."""
    board = _runner(request).board

    def results() -> list[FinishedResult]:
        found: list[FinishedResult] = []
        after, more = None, True
        while more and len(found) < most and (page := board.page(_PAGE, after, "desc", PREFIX)) is not None:
            jobs, more = page
            after = jobs[-1].id if jobs else None
            for job in jobs:
                for output in job.outputs if job.status == "completed" else ():
                    if output.output_format == _TIFF:
                        file = ResultFile(path=board.store.folder / output.stored, ttl=board.store.ttl)
                        found.append(_described(job, output, file))
        return found[:most]

    return await asyncio.to_thread(results)


def _described(job: SceneJob, output: SceneOutput, file: ResultFile) -> FinishedResult:
    address, several = f"{_PATH}/{job.id}", len(job.outputs) > 1
    chosen = output.query if several else {}
    return FinishedResult(
        id=f"{job.id}-{output.label}" if several else job.id,
        title=job.name_of(output),
        file=file,
        address=address,
        query=urlencode(chosen),
        preview=output.preview and f"{address}/content?{urlencode({**chosen, 'variant': 'preview'})}",
    )


def _runner(request: Request) -> SceneRunner:
    service_of(request, ForwardService)
    runner: SceneRunner = request.app.state.mmout_scenes
    return runner


SCENES: Final = ResultAddress(f"{_PATH}/{{scene_id}}", _find, SELECTORS, _finished, _newest)
