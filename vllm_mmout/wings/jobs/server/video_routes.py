"""HTTP routes of video jobs below ``/v1/videos``, compatible with OpenAI's API."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.image_routes import answered
from vllm_mmout.serving.request.json_body import read_request
from vllm_mmout.serving.request.request_ids import request_id, trace_headers
from vllm_mmout.serving.response.ranges import ranged_response
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.serving.work import Work
from vllm_mmout.wings.jobs.server import result_responses, video_schemas
from vllm_mmout.wings.jobs.server.job import VIDEO_PREFIX, SceneInputs, SceneJob, VideoSettings
from vllm_mmout.wings.jobs.server.job_lookup import JobKind, delete_job, exempt_handler, find_job, list_jobs
from vllm_mmout.wings.jobs.server.kept_request import encode_request
from vllm_mmout.wings.jobs.server.video_request import (
    ROUTE,
    keep_reference,
    read_video_request,
)
from vllm_mmout.wings.jobs.server.video_work import check_videos, video_work

if TYPE_CHECKING:
    from fastapi import FastAPI

    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.wings.jobs.server.runner import SceneRunner

_POLL: Final = {"openai-poll-after-ms": "500"}
"""Response header that tells OpenAI's clients how many milliseconds to wait between two polls of a video."""
_NO_SHEET: Final = "this server does not make spritesheets; ask for variant=thumbnail, or extract frames from the video"


def attach(app: FastAPI) -> None:
    """Register the HTTP routes of video jobs on the app."""
    job_path = f"{ROUTE}/{{video_id}}"
    content = exempt_handler(_content, check_videos)
    for method, path, endpoint, description in (
        ("POST", ROUTE, create_video, video_schemas.CREATE),
        ("GET", ROUTE, exempt_handler(_videos, check_videos), video_schemas.LIST),
        ("GET", job_path, exempt_handler(_video, check_videos), video_schemas.GET),
        ("DELETE", job_path, exempt_handler(_delete_video, check_videos), video_schemas.DELETE),
        ("GET", f"{job_path}/content", content, video_schemas.CONTENT),
    ):
        app.add_api_route(path, endpoint, methods=[method], tags=["videos"], openapi_extra=description)
    app.add_api_route(f"{job_path}/content", content, methods=["HEAD"], include_in_schema=False)


async def create_video(request: Request) -> Response:
    """Create a job that makes a video. The response is sent before the job runs."""
    return await answered(request, ForwardService, lambda service, _: _created(request, service))


def described(job: SceneJob) -> dict[str, Any]:
    """Return the JSON description of a video job, in the form of OpenAI's API."""
    video, output = job.video or VideoSettings(), job.outputs[0] if job.status == "completed" else None
    times = {name: getattr(job, name) for name in ("created_at", "completed_at", "expires_at")}
    return {
        "id": job.id,
        "object": "video",
        "model": job.model,
        "status": job.status,
        "progress": job.percent,
        **{name: None if seconds is None else int(seconds) for name, seconds in times.items()},
        "prompt": video.prompt,
        "size": video.size if output is None else output.size or video.size,
        "seconds": video.seconds if output is None else output.seconds or video.seconds,
        "remixed_from_video_id": None,
        "error": None if job.error is None else {"code": job.error.code, "message": job.error.message},
    }


def rebuild(service: ForwardService, video: VideoSettings, request: ImageRequest) -> tuple[Work, SceneInputs]:
    """Rebuild the request (`Work`) and the input of a video job that another server started. The call blocks."""
    inputs = keep_reference(request.images, service.sources)
    try:
        return video_work(service, request, video, inputs.data, f"video-{uuid4().hex}"), inputs
    except BaseException:
        inputs.held.close()
        raise


_KIND: Final = JobKind(VIDEO_PREFIX, "video_id", "ask for the video again", "video.deleted", described)


async def _created(request: Request, service: ForwardService) -> Response:
    check_videos(service)
    async with AsyncExitStack() as unused:
        video_request = read_video_request(await read_request(request, service.options, unused))
        inputs = await in_thread(partial(video_request.keep_reference, service.sources), lambda made: made.held.close())
        unused.push_async_callback(asyncio.to_thread, inputs.held.close)
        name, headers = request_id(request, "video"), trace_headers(request)
        work = video_work(service, video_request.image_request, video_request.video, inputs.data, name, headers=headers)
        model = video_request.image_request.model or service.models.registry.model_name()
        runner: SceneRunner = request.app.state.mmout_scenes
        job = await runner.add(
            work, inputs, model, service.options, encode_request(video_request.image_request), video=video_request.video
        )
        unused.pop_all()
    return JSONResponse(described(job), headers=_POLL)


async def _videos(request: Request, runner: SceneRunner) -> Response:
    """Return one page of the video jobs of all servers."""
    return await list_jobs(request, runner.board, _KIND)


async def _video(request: Request, runner: SceneRunner) -> Response:
    """Return the description of one video job."""
    return JSONResponse(described(await find_job(request, runner.board, _KIND)), headers=_POLL)


async def _delete_video(request: Request, runner: SceneRunner) -> Response:
    """Cancel a video job and delete it with its video."""
    return await delete_job(request, runner, _KIND)


async def _content(request: Request, runner: SceneRunner) -> Response:
    """Send a video, or its first frame as a thumbnail. The request header Range selects a part of the bytes."""
    job = await find_job(request, runner.board, _KIND)
    variant = result_responses.one_of(request, "variant", "video", "thumbnail", "spritesheet", usual="video")
    if variant == "spritesheet":
        raise ApiError(400, _NO_SHEET, param="variant")
    if job.status != "completed":
        why = f"failed: {job.error.message}" if job.error is not None else f"is {job.status}; ask again when it is done"
        raise ApiError(409, f"there is no video because the job {why}", param="video_id")
    output = job.outputs[0]
    entry = await asyncio.to_thread(
        runner.board.store.find, output.stored if variant == "video" else output.preview or ""
    )
    if entry is None:
        raise ApiError(404, f"the video was removed to make room for newer ones; {_KIND.advice}", param="video_id")
    return ranged_response(request, entry, f"{job.id}-{variant}", result_responses.PRIVATE, variant)
