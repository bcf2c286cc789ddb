"""HTTP routes of jobs below ``/v1/scenes``, modelled on OpenAI's ``/v1/videos``."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vllm_mmout.log import logger
from vllm_mmout.serving.extension import ServerExtension
from vllm_mmout.serving.image_routes import answered
from vllm_mmout.serving.request.fields import edit_request
from vllm_mmout.serving.request.json_body import read_request
from vllm_mmout.serving.response.responses import parts_response, unless_gone
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, Encoded
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.wings.jobs.ogc import ogc_routes
from vllm_mmout.wings.jobs.page import page_files
from vllm_mmout.wings.jobs.server import job_schemas, result_figure, result_responses, video_routes
from vllm_mmout.wings.jobs.server.board import SceneBoard
from vllm_mmout.wings.jobs.server.input_preview import input_preview
from vllm_mmout.wings.jobs.server.job import SceneInputs, keep_inputs
from vllm_mmout.wings.jobs.server.job_lookup import SCENE_KIND, delete_job, exempt_handler, find_job, list_jobs
from vllm_mmout.wings.jobs.server.job_schemas import SCENES
from vllm_mmout.wings.jobs.server.kept_request import decode_request
from vllm_mmout.wings.jobs.server.runner import SceneRunner
from vllm_mmout.wings.jobs.server.scene_work import add_scene, open_inputs, scene_work

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State

    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.serving.service import Service
    from vllm_mmout.serving.work import Work
    from vllm_mmout.wings.jobs.server.job import SceneJob


class JobRoutes(ServerExtension):
    """Server extension that adds the routes of jobs and the web page."""

    def attach(self, app: FastAPI) -> None:
        """Register the routes of scenes, of videos and of the web page on the app."""
        job_path = "/v1/scenes/{scene_id}"
        for method, path, endpoint, description in (
            ("POST", "/v1/scenes", create, job_schemas.CREATE),
            ("GET", "/v1/scenes", exempt_handler(_scenes), job_schemas.LIST),
            ("POST", "/v1/scenes/preview", preview, job_schemas.PREVIEW),
            ("GET", job_path, exempt_handler(_scene), job_schemas.GET),
            ("DELETE", job_path, exempt_handler(_delete), job_schemas.DELETE),
            ("GET", f"{job_path}/content", exempt_handler(_result), job_schemas.CONTENT),
            ("GET", f"{job_path}/pixel", exempt_handler(_pixel), job_schemas.PIXEL),
            ("GET", f"{job_path}/figure", exempt_handler(_figure), job_schemas.FIGURE),
        ):
            app.add_api_route(path, endpoint, methods=[method], tags=["scenes"], openapi_extra=description)
        app.add_api_route(f"{job_path}/content", exempt_handler(_result), methods=["HEAD"], include_in_schema=False)
        video_routes.attach(app)
        ogc_routes.attach(app)
        page_files.attach(app)

    async def start(self, service: Service, state: State) -> None:
        """Open the job database, start the job runner, and log the URL of the web page."""
        if isinstance(service, ForwardService):
            board = await asyncio.to_thread(SceneBoard, service.store, partial(_serves, service))
            state.mmout_scenes = SceneRunner(board, partial(_rebuild, service))
            state.mmout_scenes.start()
            if (address := page_files.address(state.args)) is not None:
                logger.info("the page is at %s", address)


async def create(request: Request) -> Response:
    """Create a job. The response is sent as soon as the input has arrived, before the job runs."""
    return await answered(request, ForwardService, lambda service, _: _created(request, service))


async def preview(request: Request) -> Response:
    """Return an input at reduced size for display, without creating a job."""
    return await answered(request, ForwardService, lambda service, held: _previewed(request, service, held))


async def _scenes(request: Request, runner: SceneRunner) -> Response:
    """Return one page of the jobs of all servers."""
    return await list_jobs(request, runner.board, SCENE_KIND)


async def _scene(request: Request, runner: SceneRunner) -> Response:
    """Return the description of one job."""
    return JSONResponse((await find_job(request, runner.board, SCENE_KIND)).described())


async def _result(request: Request, runner: SceneRunner) -> Response:
    """Send the result of a job, or its preview. The preview of a running job shows the tiles that are done."""
    return await result_responses.send_result(request, await find_job(request, runner.board, SCENE_KIND), runner)


async def _pixel(request: Request, runner: SceneRunner) -> Response:
    """Return the values of one pixel of a result."""
    return await result_responses.send_pixel(
        request, await find_job(request, runner.board, SCENE_KIND), runner.board.store
    )


async def _figure(request: Request, runner: SceneRunner) -> Response:
    """Send a result as a map for reports: a PNG with legend, scale bar and north arrow."""
    return await result_figure.send_figure(request, await find_job(request, runner.board, SCENE_KIND), runner)


async def _delete(request: Request, runner: SceneRunner) -> Response:
    """Cancel a job and delete it with its results."""
    return await delete_job(request, runner, SCENE_KIND)


async def _created(request: Request, service: ForwardService) -> Response:
    async with AsyncExitStack() as unused:
        job = await add_scene(request, service, await _read(request, service, unused), unused)
    return JSONResponse(job.described())


def _serves(service: ForwardService, model: str) -> bool:
    """Return whether this server can currently run jobs of a model."""
    models = service.models
    return not service.engine.errored and (models.registry.is_base_model(model) or model in models.lora_requests)


def _rebuild(service: ForwardService, job: SceneJob) -> tuple[Work, SceneInputs]:
    """Rebuild the `Work` and the input of a job that another server began, so that this server can run the job.

    The call blocks while it opens files.
    """
    request = decode_request(job.request or "")
    if job.video is not None:
        return video_routes.rebuild(service, job.video, request)
    inputs = keep_inputs(request.images, service.sources, skip_failed=request.options.skip_failed)
    try:
        return scene_work(service, request, inputs, f"scene-{uuid4().hex}"), inputs
    except BaseException:
        inputs.held.close()
        raise


async def _previewed(request: Request, service: ForwardService, held: AsyncExitStack) -> Response:
    inputs = await open_inputs(await _read(request, service, held), service, held)

    def reduced() -> bytes:
        with service.sources.opened(inputs.data) as opened:
            return msgspec.json.encode(input_preview(opened, service.binding.inputs))

    async def preview_json() -> bytes:
        async with request.app.state.mmout_scenes.previews:
            return await asyncio.to_thread(reduced)

    answer = await unless_gone(request, preview_json())
    return parts_response([Encoded(answer, "json")], MEDIA_TYPES["json"], as_text=False)


async def _read(request: Request, service: ForwardService, held: AsyncExitStack) -> ImageRequest:
    """Read the body of an HTTP request for a job. Closing the exit stack ``held`` closes the uploaded files."""
    return edit_request(await read_request(request, service.options, held), SCENES)
