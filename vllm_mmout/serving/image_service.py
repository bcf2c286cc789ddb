"""ImageService, which answers OpenAI's image API with a model that computes its results in one forward pass."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.outputs.formats import suffix_of
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.request.fields import VARIATIONS, edit_request, generation_request
from vllm_mmout.serving.request.json_body import read_json, read_request
from vllm_mmout.serving.request.request_ids import request_id, trace_headers
from vllm_mmout.serving.response.assumptions_header import warnings_header
from vllm_mmout.serving.response.encode import encode, size_of
from vllm_mmout.serving.response.events import Event, EventsResponse, completed, partial_image
from vllm_mmout.serving.response.format_choice import accepted
from vllm_mmout.serving.response.responses import bare_response, close_entries, json_response, unless_gone, usage
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.response.store import kept
from vllm_mmout.serving.service import Field, ForwardService
from vllm_mmout.serving.work import Work, tiles_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from vllm_mmout.outputs.base import MediaOutput
    from vllm_mmout.serving.request.fields import Fields, ImageRequest

Kind: TypeAlias = Literal["image_edit", "image_generation"]
"""Prefix of the names of streamed events: "image_edit" in "image_edit.completed", for example."""
_QUIET_S: Final = 5.0
"""Minimum time in seconds between two keepalives of an event stream. Keepalives are sent while the model runs."""


class ImageService(ForwardService):
    """Service for the routes of OpenAI's image API, for models that compute their results in one forward pass."""

    __slots__ = ()

    async def generated_images(self, request: Request) -> Response:
        """Answer a request to ``/v1/images/generations``, for a model that takes text."""
        asked = generation_request(await read_json(request, self.options))
        inputs = self.binding.inputs
        if inputs is not None and inputs.opens_files:
            raise ApiError(
                400,
                f"the model {self.binding.model!r} takes {inputs.takes}, no text; send one to /v1/images/edits",
                param="prompt",
            )
        return await answered_images(request, self, asked, asked.prompt, "image_generation")

    async def edited_images(self, request: Request, fields: Fields, held: AsyncExitStack) -> Response:
        """Answer a request to ``/v1/images/edits`` or ``/v1/images/variations``.

        The exit stack ``held`` closes the uploaded files.
        """
        asked = edit_request(await read_request(request, self.options, held, json=fields is not VARIATIONS), fields)
        data = asked.images[0] if len(asked.images) == 1 else list(asked.images)
        return await answered_images(request, self, asked, data, "image_edit")


async def answered_images(
    request: Request, service: ForwardService, fields: ImageRequest, data: Any, kind: Kind
) -> Response:
    """Run a request of OpenAI's image API. Return JSON, a file or a stream of events, as the client requested."""
    work = image_work(request, service, fields, data, "prompt" if kind == "image_generation" else "image")
    if work.request.stream:
        return EventsResponse(_events(work, kind), work.request_id)
    return await unless_gone(request, answer(work, request))


def image_work(request: Request, service: ForwardService, fields: ImageRequest, data: Any, field: Field) -> Work:
    """Check a request of OpenAI's image API, and create the `Work` object that runs the request.

    ``data`` is the model's input, which the client sent in the request field called ``field``.
    """
    fields = msgspec.structs.replace(fields, accept=accepted(request.headers.get("accept")))
    options = fields.options
    for needs_json, param in (
        (len(options.named) > 1, "output" if isinstance(options.output, tuple) else "processor"),
        (options.each_day, "each_day"),
        (fields.response_format == "url", "response_format"),
        (fields.stream, "stream"),
        (fields.options.path is not None, "path"),
    ):
        if fields.accept is not None and needs_json:
            raise ApiError(
                400, f"{param} needs an answer in JSON; leave out the Accept header, or {param}", param=param
            )
    name = request_id(request, "image")
    return Work.of(service, fields, data, name, field, trace_headers=trace_headers(request))


async def _events(work: Work, kind: Kind) -> AsyncGenerator[Event | None, None]:
    """Run a request, and yield its events: previews, then results. Yield None to make the stream send a keepalive."""
    last, said_at = None, 0.0
    async with aclosing(work.running()) as outputs:
        async for output in outputs:
            last = output
            progress = None if output.finished else output.progress
            if progress is not None and progress.partial_index is not None:
                budget = work.new_budget()
                making = partial(encode, output.outputs, work.request.for_preview, budget=budget)
                preview = await in_thread(making, stop=budget.abandon)
                yield partial_image(kind, progress.partial_index, preview)
            elif progress is not None and time.monotonic() - said_at > _QUIET_S:
                said_at = time.monotonic()
                yield None
    if last is None:
        return
    entries = await work.encoded(last)
    for label, entry in zip(work.labels(last.outputs) or [{}], entries, strict=True):
        own: dict[str, Any] = {**label}
        own |= {"warnings": list(last.assumed)} if last.assumed else {}
        yield completed(kind, entry, used=usage(tiles_of(last)), **own)


async def answer(work: Work, request: Request) -> Response:
    """Run a request, and return a response with its results, or with the URLs of stored results."""
    last = await work.last()
    urls: list[str] = []
    if work.params.path is None:
        entries = await work.encoded(last)
    else:
        entries, urls = await _written(work, last.outputs)
    if work.request.accept is not None:
        return bare_response(entries[0], warnings_header(last.assumed))
    if work.request.response_format == "url":
        names = await kept(work.service.store, entries)
        urls = [str(request.url_for("mmout_result", name=name)) for name in names]
    labels = work.labels(last.outputs)
    return json_response(entries, tiles=tiles_of(last), labels=labels, urls=urls, warnings=last.assumed)


async def _written(work: Work, outputs: Any) -> tuple[list[Encoded], list[str]]:
    """Return the formats, sizes and addresses of the results that the engine wrote to a bucket."""
    urls: list[str] = []

    def describe(output: MediaOutput, *_: Any) -> Encoded:
        urls.append(str(output.path))
        name = output.formats[suffix_of(PurePath(urls[-1]))]
        return Encoded(b"", name, size=size_of(output, name))

    return await in_thread(lambda: list(work.made(outputs, describe).values()), close_entries), urls
