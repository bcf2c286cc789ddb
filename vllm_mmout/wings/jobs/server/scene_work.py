"""Create jobs of scenes, for the routes ``/v1/scenes`` and for OGC API Processes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.serving.request.request_ids import request_id, trace_headers
from vllm_mmout.serving.work import Work
from vllm_mmout.wings.jobs.server.job import SceneInputs, keep_inputs
from vllm_mmout.wings.jobs.server.kept_request import encode_request

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from starlette.requests import Request

    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.serving.service import ForwardService
    from vllm_mmout.wings.jobs.server.job import Delivery, SceneJob
    from vllm_mmout.wings.jobs.server.runner import SceneRunner


async def add_scene(
    request: Request,
    service: ForwardService,
    image_request: ImageRequest,
    unused: AsyncExitStack,
    *,
    delivery: Delivery | None = None,
) -> SceneJob:
    """Check a request, and create a job for a scene. On failure, the exit stack ``unused`` closes the input files.

    On success, the job owns the input files.
    """
    inputs = await open_inputs(image_request, service, unused)
    work = scene_work(service, image_request, inputs, request_id(request, "scene"), trace_headers(request))
    model = image_request.model or service.models.registry.model_name()
    runner: SceneRunner = request.app.state.mmout_scenes
    job = await runner.add(work, inputs, model, service.options, encode_request(image_request), delivery=delivery)
    unused.pop_all()
    return job


async def open_inputs(image_request: ImageRequest, service: ForwardService, held: AsyncExitStack) -> SceneInputs:
    """Check the input files of a request. Uploaded files stay open until the exit stack ``held`` is closed."""
    inputs = await in_thread(
        partial(keep_inputs, image_request.images, service.sources, skip_failed=image_request.options.skip_failed),
        lambda made: made.held.close(),
    )
    held.push_async_callback(asyncio.to_thread, inputs.held.close)
    return inputs


def scene_work(
    service: ForwardService,
    request: ImageRequest,
    inputs: SceneInputs,
    name: str,
    headers: Mapping[str, str] | None = None,
) -> Work:
    """Build the `Work` that runs a scene's request. Check the request as far as possible without the model."""
    request = msgspec.structs.replace(request, as_file=True)
    return Work.of(service, request, inputs.data, name, trace_headers=headers)
