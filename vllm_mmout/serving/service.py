"""Service: the objects that the routes of one server share, and how a request runs on its engine."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.input_forms import is_open_file
from vllm_mmout.models.inputs.model_inputs import Raw
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.inputs.sources import Sources, rgb_picture
from vllm_mmout.serving.request.fields import VARIATIONS, edit_request, generation_request
from vllm_mmout.serving.request.json_body import read_json, read_request
from vllm_mmout.serving.request.request_ids import request_id, trace_headers
from vllm_mmout.serving.response.assumptions_header import warnings_header
from vllm_mmout.serving.response.encode import encode, size_of
from vllm_mmout.serving.response.events import Event, EventsResponse, completed, partial_image
from vllm_mmout.serving.response.format_choice import accepted
from vllm_mmout.serving.response.responses import bare_response, close_entries, json_response, unless_gone, usage
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.work import TEXTS, Field, Work, tiles_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.observer import Observer
    from vllm_mmout.outputs.base import MediaOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.inputs.pixel_limit import PixelLimit
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.request.fields import Fields, ImageRequest
    from vllm_mmout.serving.response.store import ResultStore

Kind: TypeAlias = Literal["image_edit", "image_generation"]
"""Prefix of the types of a stream's events."""
_ROUTES: Final = {"audio": "/v1/audio/speech", "video": "/v1/videos"}
"""Kind of a model's results -> route to ask for them."""
_QUIET_S: Final = 5.0
"""Seconds after which a stream without previews shows a sign of life."""


@dataclass(frozen=True, slots=True)
class Service:
    """Objects that the routes share on a server whose model has output processors."""

    engine: Any
    models: OpenAIServingModels
    """vLLM's list of the names under which the model and its adapters are served."""
    options: ServingOptions
    store: ResultStore
    observer: Observer

    @property
    def gives(self) -> str:
        """Return a description of the model and its route, for error messages."""
        raise NotImplementedError

    @property
    def chats(self) -> bool:
        """Return whether the service has its own handler for chats that ask for media."""
        return False

    async def generated_images(self, request: Request) -> Response:
        """Answer a request to ``/v1/images/generations``."""
        raise NotImplementedError

    def adapter(self, model: str | None) -> LoRARequest | None:
        """Return the LoRA adapter with the name ``model``, or None for the server's own model and for an empty name."""
        if not model or self.models.registry.is_base_model(model):
            return None
        adapter = self.models.lora_requests.get(model)
        if adapter is None:
            served = ", ".join(path.name for path in self.models.base_model_paths)
            raise ApiError(404, f"the model {model!r} is not served here (served: {served})", param="model")
        return adapter


@dataclass(frozen=True, slots=True)
class ForwardService(Service):
    """Service of a server whose model computes its results in one forward pass."""

    engine: BoundAsyncLLM
    sources: Sources

    @property
    def binding(self) -> Binding:
        """Return the engine's processors and input mapper."""
        return self.engine.output_processor.binding

    @property
    def gives(self) -> str:
        """Return a description of the model and its route, for error messages."""
        kinds = " and ".join(dict.fromkeys(processor.modality for processor in self.binding.processors.values()))
        route = _ROUTES.get(kinds, "/v1/images/edits")
        description = f"the model {self.binding.model!r} answers with {kinds}, not with text; use {route}"
        silent = [type(each).__name__ for each in self.binding.processors.values() if not _says_modality(each)]
        if not silent:
            return description
        return (
            f"{description}. The class {' and '.join(silent)} has no modality of its own: if it returns AudioOutput or"
            ' VideoOutput, write modality = "audio" or "video" into it'
        )

    async def generated_images(self, request: Request) -> Response:
        """Answer a request to ``/v1/images/generations``, for a model whose input mapper takes text."""
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
        """Answer ``/v1/images/edits`` or ``/v1/images/variations``. Uploaded files are closed with ``held``."""
        asked = edit_request(await read_request(request, self.options, held, json=fields is not VARIATIONS), fields)
        data = asked.images[0] if len(asked.images) == 1 else list(asked.images)
        return await answered_images(request, self, asked, data, "image_edit")

    def largest_input(self, params: OutputParams) -> PixelLimit | None:
        """Return the limit of pixels for each file of a request, or None to use the server's own limit."""
        del params
        return None

    @contextmanager
    def opened(self, data: Any, params: OutputParams, field: Field) -> Iterator[Any]:
        """Open the input that a client sent, and yield it in the form that the engine takes.

        The call blocks while files are fetched, read and decoded.
        """
        self.store.shared.enter()  # the folder of results must exist
        own = self.binding.own_inputs(params)
        inputs = self.binding.inputs
        files = own is not None or inputs is None or inputs.opens_files
        if own is None and (field in TEXTS or (field == "data" and not files)):
            # Raw marks data that the engine must not read as a prompt of vLLM or as tensors by keyword.
            yield data if inputs is None else Raw(data)
            return
        words, pictures = ((), True) if inputs is None or own is not None else (inputs.words, inputs.pictures)
        most = self.largest_input(params)
        sources = self.sources.opened(data, texts=files, words=words, pictures=pictures, most=most)
        with nullcontext(data) if field in TEXTS else sources as opened:
            if own is not None and not is_open_file(opened):  # an IO plugin would open any path or address
                raise InputError(
                    f"output processor {own[0]!r} takes one file from a client; send it, or its address or data URL"
                )
            if own is None and inputs is None and is_open_file(opened):  # vLLM renders pictures, not files
                yield {"multi_modal_data": {"image": rgb_picture(opened)}}
            else:
                yield opened


def _says_modality(processor: Any) -> bool:
    """Return whether a processor, or a class of its below `OutputProcessor`, sets ``modality``."""
    classes = [kind for kind in type(processor).__mro__ if kind is not OutputProcessor]
    return any("modality" in vars(kind) for kind in classes) or "modality" in getattr(processor, "__dict__", {})


async def answered_images(
    request: Request, service: ForwardService, fields: ImageRequest, data: Any, kind: Kind
) -> Response:
    """Run a request of OpenAI's image interface, and answer in the form that it asks for."""
    work = image_work(request, service, fields, data, "prompt" if kind == "image_generation" else "image")
    if work.request.stream:
        return EventsResponse(_events(work, kind), work.request_id)
    return await unless_gone(request, answer(work, request))


def image_work(request: Request, service: ForwardService, fields: ImageRequest, data: Any, field: Field) -> Work:
    """Create the `Work` for a request in OpenAI's image API. The whole request is checked before the model runs."""
    fields = msgspec.structs.replace(fields, accept=accepted(request.headers.get("accept")))
    processor = fields.options.processor
    for needs_json, param in (
        (isinstance(processor, tuple) and len(processor) > 1, "processor"),
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
    """Run a request. Yield previews while its result grows, then its results. Yield None as a keepalive."""
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
    for name, entry in zip(work.names, entries, strict=True):
        own: dict[str, Any] = {"processor": name} if work.named else {}
        own |= {"warnings": list(last.assumed)} if last.assumed else {}
        yield completed(kind, entry, used=usage(tiles_of(last)), **own)


async def answer(work: Work, request: Request) -> Response:
    """Run a request, and answer with its results, or with the addresses of results that are stored or written."""
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
    return json_response(entries, tiles=tiles_of(last), processors=work.named, urls=urls, warnings=last.assumed)


async def _written(work: Work, outputs: Any) -> tuple[list[Encoded], list[str]]:
    """Return descriptions and addresses of results that the engine has written to a bucket."""
    urls: list[str] = []

    def describe(output: MediaOutput, _: Any) -> Encoded:
        urls.append(str(output.path))
        name = output.formats[PurePath(urls[-1]).suffix.lower()]
        return Encoded(b"", name, size=size_of(output, name))

    return await in_thread(lambda: list(work.made(outputs, describe).values()), close_entries), urls


async def kept(store: ResultStore, entries: list[Encoded]) -> list[str]:
    """Store results off the event loop, and return their names. If the task is cancelled, they are removed again."""
    return await in_thread(lambda: store.keep_all(entries), lambda names: store.remove(*names))
