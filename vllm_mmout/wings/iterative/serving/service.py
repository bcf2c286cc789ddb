"""Answer OpenAI's image routes on a server whose model is iterative, such as a diffusers pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.image_service import answered_images, image_work
from vllm_mmout.serving.inputs.pixel_limit import PixelLimit
from vllm_mmout.serving.options import flag
from vllm_mmout.serving.request.fields import EDITS
from vllm_mmout.serving.request.json_body import read_json, read_request
from vllm_mmout.serving.response.responses import close_entries, json_response, unless_gone
from vllm_mmout.serving.response.store import kept
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.serving.work import tiles_of
from vllm_mmout.wings.iterative.serving.fields import edit_request, generation_request

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.image_service import Kind
    from vllm_mmout.serving.request.fields import Fields, ImageRequest
    from vllm_mmout.serving.response.result_files import Encoded
    from vllm_mmout.serving.service import Field
    from vllm_mmout.serving.work import Work


class StepService(ForwardService):
    """Service of OpenAI's image routes for iterative models. It supports the request fields ``n`` and ``mask``."""

    __slots__ = ()

    async def generated_images(self, request: Request) -> Response:
        """Answer a request to ``/v1/images/generations``, which makes pictures from a text."""
        inputs = self.binding.inputs
        if inputs is not None and inputs.opens_files and "prompt" not in inputs.fields:
            raise ApiError(400, f"the model {self.binding.model!r} takes no text; use {EDITS.path}", param="prompt")
        image_request, count = generation_request(await read_json(request, self.options))
        return await self._answered(request, image_request, count, image_request.prompt, "image_generation")

    async def edited_images(self, request: Request, fields: Fields, held: AsyncExitStack) -> Response:
        """Answer a request to ``/v1/images/edits``, which makes a picture from a prompt, pictures and a mask."""
        inputs = self.binding.inputs
        if inputs is None or not inputs.opens_files:
            raise ApiError(
                400, f"the model {self.binding.model!r} takes no pictures; use /v1/images/generations", param="image"
            )
        if fields is not EDITS:
            raise ApiError(400, f"{fields.path} is for models without a prompt; use {EDITS.path}", param="prompt")
        image_request, count, mask = edit_request(await read_request(request, self.options, held))
        image = image_request.images[0] if len(image_request.images) == 1 else list(image_request.images)
        data = {"prompt": image_request.prompt, "image": image, "mask_image": mask}
        parts = {name: value for name, value in data.items() if value is not None}
        return await self._answered(request, image_request, count, parts, "image_edit")

    def largest_input(self, params: OutputParams) -> PixelLimit | None:
        """Return the pixel limit for an input picture if the result will have the same size as the picture.

        Return None if the request sets the size of the result, or if the model takes rasters. The server's default
        limit for inputs then applies.
        """
        inputs = self.binding.inputs
        if params.sides is not None or inputs is None or inputs.rasters is not None:
            return None
        max_pixels = min(self.options.max_made_pixels, self.options.max_pixels)
        why = ", since the result is as large as it"
        return PixelLimit(max_pixels, flag("max_made_pixels"), why, "make it smaller, or send size")

    async def _answered(
        self, request: Request, image_request: ImageRequest, count: int, data: Any, kind: Kind
    ) -> Response:
        if count == 1:
            return await answered_images(request, self, image_request, data, kind)
        field: Field = "prompt" if kind == "image_generation" else "image"
        work = image_work(request, self, image_request, data, field)
        if work.request.accept is not None:
            raise ApiError(400, "n needs an answer in JSON; leave out the Accept header, or n", param="n")
        work = replace(work, budget=work.new_budget())
        works = [_with_seed(work, number) for number in range(count)]
        return await unless_gone(request, _answer(works, request))


def _with_seed(work: Work, number: int) -> Work:
    """Return a copy of a request with a new id, and with ``number`` added to the seed.

    A request without a seed stays without a seed.
    """
    seed = work.params.seed
    fields = work.request
    if seed is not None:
        options = msgspec.structs.replace(work.params, seed=seed + number)
        fields = msgspec.structs.replace(fields, options=options)
    return replace(work, request=fields, request_id=f"{work.request_id}-{number}-{uuid4().hex}")


async def _answer(works: Sequence[Work], request: Request) -> Response:
    """Run requests concurrently, and return one HTTP response with the results of all of them."""
    results = await _results(works)
    entries = [entry for _, made in results for entry in made]
    names = await kept(works[0].service.store, entries) if works[0].request.response_format == "url" else []
    urls = [str(request.url_for("mmout_result", name=name)) for name in names]
    return json_response(
        entries,
        tiles=sum(tiles_of(last) for last, _ in results),
        labels=[label for last, _ in results for label in works[0].labels(last.outputs)],
        urls=urls,
        warnings=list(dict.fromkeys(text for last, _ in results for text in last.assumed)),
    )


async def _result(work: Work) -> tuple[MultimodalRequestOutput, list[Encoded]]:
    """Run the request ``work``. Return the engine's output object, and the results encoded as files."""
    last = await work.last()
    return last, await work.encoded(last)


async def _results(works: Sequence[Work]) -> list[tuple[MultimodalRequestOutput, list[Encoded]]]:
    """Run requests together and return their results. If a request fails, cancel the others and close their results."""
    tasks = [asyncio.create_task(_result(work)) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        done = [result for result in ended if not isinstance(result, BaseException)]
        await asyncio.to_thread(close_entries, [entry for _, made in done for entry in made])
        raise
