"""Service: what the routes of one server share, and one request's way through its engine to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.input_forms import is_open_file
from vllm_mmout.models.inputs.model_inputs import Raw
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.inputs.sources import Sources, rgb_picture
from vllm_mmout.serving.request.body import is_json, read_form
from vllm_mmout.serving.request.fields import EDITS, edit_request, edit_request_json, generation_request
from vllm_mmout.serving.request.json_body import read_json
from vllm_mmout.serving.request.names import request_id, trace_headers
from vllm_mmout.serving.response.assumed import warnings_header
from vllm_mmout.serving.response.encode import FormatChoice, accepted
from vllm_mmout.serving.response.events import EventsResponse, stream
from vllm_mmout.serving.response.responses import bare_response, json_response, unless_gone
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.work import TEXTS, Field, Work
from vllm_mmout.serving.written import written

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.observer import Observer
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.inputs.pixel_limit import PixelLimit
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.request.fields import Fields, ImageRequest
    from vllm_mmout.serving.response.events import Kind
    from vllm_mmout.serving.response.store import ResultStore

_ROUTES = {"audio": "/v1/audio/speech", "video": "/v1/videos"}
"""Kind of a model's results -> where it is asked for them."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes of a server share whose model has output processors."""

    engine: Any
    models: OpenAIServingModels
    """vLLM's: the names under which the model is served."""
    options: ServingOptions
    store: ResultStore
    observer: Observer

    @property
    def gives(self) -> str:
        """What the model does, and where it is asked, for messages."""
        raise NotImplementedError

    @property
    def chats(self) -> bool:
        """Whether a handler of its own looks at chats that ask for media, and answers or refuses them."""
        return False

    async def generated_images(self, request: Request) -> Response:
        """Answer ``/v1/images/generations``."""
        raise NotImplementedError

    def adapter(self, model: str | None) -> LoRARequest | None:
        """The LoRA adapter of the model that a request names; None for the server's own."""
        if not model or self.models.registry.is_base_model(model):
            return None
        adapter = self.models.lora_requests.get(model)
        if adapter is None:
            served = ", ".join(path.name for path in self.models.base_model_paths)
            raise ApiError(404, f"the model {model!r} is not served here (served: {served})", param="model")
        return adapter


@dataclass(frozen=True, slots=True)
class ForwardService(Service):
    """Of a server whose model answers in one forward."""

    engine: BoundAsyncLLM
    sources: Sources

    @property
    def binding(self) -> Binding:
        """The engine's processors and inputs."""
        return self.engine.output_processor.binding

    @property
    def gives(self) -> str:
        """What the model does, and where it is asked, for messages."""
        kinds = " and ".join(dict.fromkeys(processor.modality for processor in self.binding.processors.values()))
        route = _ROUTES.get(kinds, "/v1/images/edits")
        said = f"the model {self.binding.model!r} answers with {kinds}, not with text; use {route}"
        silent = [type(one).__name__ for one in self.binding.processors.values() if not _says_modality(one)]
        if not silent:
            return said
        return (
            f"{said}. The class {' and '.join(silent)} has no modality of its own: if it returns AudioOutput or"
            ' VideoOutput, write modality = "audio" or "video" into it'
        )

    async def generated_images(self, request: Request) -> Response:
        """Answer ``/v1/images/generations`` of a model whose mapper takes text."""
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
        """Answer ``/v1/images/edits`` and ``/variations``; what is uploaded is closed with ``held``."""
        if fields is EDITS and is_json(request):
            asked = edit_request_json(await read_json(request, self.options))
        else:
            form = await read_form(request, self.options)
            held.push_async_callback(asyncio.to_thread, form.close)
            asked = edit_request(form, fields)
        data = asked.images[0] if len(asked.images) == 1 else list(asked.images)
        return await answered_images(request, self, asked, data, "image_edit")

    def largest_input(self, params: OutputParams) -> PixelLimit | None:
        """Return the limit of pixels for each file of a request, or None to use the server's own limit."""
        del params
        return None

    @contextmanager
    def opened(self, data: Any, params: OutputParams, field: Field) -> Iterator[Any]:
        """What the engine takes, open; blocks."""
        self.store.shared.enter()  # the result is made there
        own = self.binding.own_inputs(params)
        inputs = self.binding.inputs
        files = own is not None or inputs is None or inputs.opens_files
        if own is None and (field in TEXTS or (field == "data" and not files)):
            # Wrapped, so that nothing in it is taken for a prompt of vLLM's or for tensors by keyword.
            yield data if inputs is None else Raw(data)
            return
        words, pictures = ((), True) if inputs is None or own is not None else (inputs.words, inputs.pictures)
        most = self.largest_input(params)
        sources = self.sources.opened(data, texts=files, words=words, pictures=pictures, most=most)
        with nullcontext(data) if field in TEXTS else sources as opened:
            if own is not None and not is_open_file(opened):  # an IO plugin would read any path or address
                raise InputError(
                    f"output processor {own[0]!r} takes one file from a client; send it, or its address or data URL"
                )
            if own is None and inputs is None and is_open_file(opened):  # vLLM renders pictures, not files
                yield {"multi_modal_data": {"image": rgb_picture(opened)}}
            else:
                yield opened


def _says_modality(processor: Any) -> bool:
    """Return whether a processor, or a class of its below `OutputProcessor`, sets ``modality``."""
    classes = [one for one in type(processor).__mro__ if one is not OutputProcessor]
    return any("modality" in vars(one) for one in classes) or "modality" in getattr(processor, "__dict__", {})


async def answered_images(
    request: Request, service: ForwardService, asked: ImageRequest, data: Any, kind: Kind
) -> Response:
    """Run a request of OpenAI's image interface, checked as a whole before, and answer as it asks."""
    work = image_work(request, service, asked, data, "prompt" if kind == "image_generation" else "image")
    if asked.stream:
        return EventsResponse(stream(work, kind), work.request_id)
    if asked.options.path is not None:
        return await unless_gone(request, written(work))
    return await unless_gone(request, answer(work, request, stored=asked.response_format == "url"))


def image_work(request: Request, service: ForwardService, asked: ImageRequest, data: Any, field: Field) -> Work:
    """A request of OpenAI's image interface, checked as a whole before the model runs."""
    accept = accepted(request.headers.get("accept"))
    form = FormatChoice(asked.output_format, asked.output_compression, asked.background, accept)
    stored = asked.response_format == "url"
    several = isinstance(asked.options.processor, tuple) and len(asked.options.processor) > 1
    path = asked.options.path is not None
    wrongs = ((several, "processor"), (stored, "response_format"), (asked.stream, "stream"), (path, "path"))
    for wrong, param in wrongs:
        if accept is not None and wrong:  # the bytes of one result are less than the answer
            raise ApiError(400, f"{param} needs an answer in JSON; leave out Accept, or {param}", param=param)
    name = request_id(request, "image")
    adapter, headers = service.adapter(asked.model), trace_headers(request)
    work = Work(service, data, asked.options, form, name, adapter, field, trace_headers=headers)
    return work.check()


async def answer(work: Work, request: Request, *, stored: bool) -> Response:
    """Run a request and answer with its results, or with the addresses under which they are stored."""
    results = await work.result()
    if work.asked.accept is not None:
        return bare_response(results.entries[0], warnings_header(results.assumed))
    urls = []
    if stored:
        names = await kept(work.service.store, results.entries)
        urls = [str(request.url_for("mmout_result", name=name)) for name in names]
    return json_response(
        results.entries, tiles=results.tiles, processors=work.named, urls=urls, warnings=results.assumed
    )


async def kept(store: ResultStore, entries: list[Encoded]) -> list[str]:
    """Store results off the event loop, and name them; of a client that goes away meanwhile nothing is left."""
    return await in_thread(lambda: store.keep_all(entries), lambda names: store.remove(*names))
