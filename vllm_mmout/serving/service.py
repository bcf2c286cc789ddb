"""Service: what the routes of one server share, and one request's way through its engine to its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
from vllm_mmout.engine.threads import entered, in_thread
from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.input_forms import is_open_file
from vllm_mmout.models.inputs.model_inputs import Raw
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.inputs.sources import Sources, rgb_picture
from vllm_mmout.serving.metrics import count_refusal
from vllm_mmout.serving.request.fields import generation_request
from vllm_mmout.serving.request.json_body import read_json
from vllm_mmout.serving.request.names import request_id, trace_headers
from vllm_mmout.serving.response.encode import FormatChoice, accepted, chosen_format, encode, response_of
from vllm_mmout.serving.response.events import EventsResponse, stream
from vllm_mmout.serving.response.responses import bare_response, close_entries, json_response, unless_gone
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.written import check_path, written

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.observer import Observer
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.outputs.partial_images import PreviewRequest
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.serving.response.encode import ToResponse
    from vllm_mmout.serving.response.events import Kind
    from vllm_mmout.serving.response.store import ResultStore

Field: TypeAlias = Literal["image", "data", "prompt", "input"]
"""The field of a request that holds its input: files, any JSON, or a text."""
_TEXTS = ("prompt", "input")


class _Closable(Protocol):
    def close(self) -> None: ...


Made = TypeVar("Made", bound=_Closable)


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
        route = "/v1/audio/speech" if kinds == "audio" else "/v1/images/edits"
        return f"the model {self.binding.model!r} answers with {kinds}, and speaks no text; ask {route}"

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

    @contextmanager
    def opened(self, data: Any, params: OutputParams, field: Field) -> Iterator[Any]:
        """What the engine takes, open; blocks."""
        self.store.shared.enter()  # the result is made there
        own = self.binding.own_inputs(params)
        inputs = self.binding.inputs
        files = own is not None or inputs is None or inputs.opens_files
        if own is None and (field in _TEXTS or (field == "data" and not files)):
            # Wrapped, so that nothing in it is taken for a prompt of vLLM's or for tensors by keyword.
            yield data if inputs is None else Raw(data)
            return
        words, pictures = ((), True) if inputs is None or own is not None else (inputs.words, inputs.pictures)
        sources = self.sources.opened(data, texts=files, words=words, pictures=pictures)
        with nullcontext(data) if field in _TEXTS else sources as opened:
            if own is not None and not is_open_file(opened):  # an IO plugin would read any path or address
                raise InputError(
                    f"output processor {own[0]!r} takes one file from a client; send it, or its address or data URL"
                )
            if own is None and inputs is None and is_open_file(opened):  # vLLM renders pictures, not files
                yield {"multi_modal_data": {"image": rgb_picture(opened)}}
            else:
                yield opened


@dataclass(frozen=True, slots=True)
class Work:
    """One request of a client, ready to be run."""

    service: ForwardService
    data: Any
    """What the field of the input held."""
    params: OutputParams
    asked: FormatChoice
    request_id: str
    adapter: LoRARequest | None = None
    field: Field = "image"
    """Where the input stood."""
    priority: int = 0
    """The lower the earlier."""
    trace_headers: Mapping[str, str] | None = None
    """The client's span, below which that of the request lies."""

    @property
    def names(self) -> tuple[str, ...]:
        """The processors whose results are wanted."""
        return self.service.binding.choice.pick(self.params.processor)

    @property
    def named(self) -> tuple[str, ...]:
        """The same where several were asked for, each result saying which is its own; else none."""
        return self.names if isinstance(self.params.processor, tuple) else ()

    def check(self) -> None:
        """Refuse what the results cannot be before the model runs, where that is known."""
        self.service.binding.check_params(self.params)
        check_path(self)
        for name in self.names:
            formats = self.service.binding.processors[name].formats(self.params)
            if formats is not None:
                chosen_format(formats, self.asked)

    async def running(self, watch: PreviewRequest | None = None) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run it, its files open meanwhile; what `AsyncLLM.generate` yields, with pictures where it is watched."""
        service = self.service
        check_path(self)  # whoever has made this: nothing may be written elsewhere
        try:
            async with entered(service.opened(self.data, self.params, self.field)) as opened:
                outputs = service.engine.generate(
                    opened,
                    self.params,
                    self.request_id,
                    lora_request=self.adapter,
                    trace_headers=self.trace_headers,
                    priority=self.priority,
                    max_tiles=service.options.max_tiles,
                    max_area=service.options.max_area,
                    watch=watch,
                    folder=service.store.shared.work,
                )
                async with aclosing(outputs):
                    async for output in outputs:
                        yield output
        except Exception as error:
            count_refusal(service.observer, error)
            if isinstance(error, InputError) and error.param is None:
                error.param = self.field
            raise api_error(error, self.request_id) from error

    async def last(self) -> MultimodalRequestOutput:
        """Run it to its end."""
        async with aclosing(self.running()) as outputs:
            async for output in outputs:
                last = output
        return last

    async def result(self) -> Results:
        """Run it to its end; its results as bytes."""
        return await self.encoded(await self.last())

    def made(self, outputs: Any, make: Callable[[Any, ToResponse | None], Made]) -> dict[str, Made]:
        """What is made of each output, and of its `response_of`, by processor; blocks.

        The outputs are closed, and what was made if one fails.
        """
        by_name: Mapping[str, Any] = outputs if self.named else {self.names[0]: outputs}
        with ExitStack() as used, ExitStack() as unfinished:
            for output in by_name.values():
                if hasattr(output, "close"):
                    used.callback(output.close)
            results: dict[str, Made] = {}
            for name, output in by_name.items():
                results[name] = make(output, response_of(self.service.binding.processors[name], self.params))
                unfinished.callback(results[name].close)
            unfinished.pop_all()
            return results

    async def encoded(self, output: MultimodalRequestOutput) -> Results:
        """Its results as the bytes that were asked for, made off the event loop."""
        folder = self.service.store.shared.work

        def entries() -> list[Encoded]:
            made = self.made(output.outputs, lambda one, respond: encode(one, self.asked, respond, folder))
            return list(made.values())

        try:
            return Results(await in_thread(entries, close_entries), output.progress.total if output.progress else 1)
        except Exception as error:
            raise api_error(error, self.request_id) from error


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a request, to be sent."""

    entries: list[Encoded]
    """One a processor; whoever sends them closes them."""
    tiles: int
    """Forwards of the model that they took."""


async def answered_images(
    request: Request, service: ForwardService, asked: ImageRequest, data: Any, kind: Kind
) -> Response:
    """Run a request of OpenAI's image interface, checked as a whole before, and answer as it asks."""
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
    field: Field = "prompt" if kind == "image_generation" else "image"
    adapter, headers = service.adapter(asked.model), trace_headers(request)
    work = Work(service, data, asked.options, form, name, adapter, field, trace_headers=headers)
    work.check()
    if asked.stream:
        return EventsResponse(stream(work, kind), name)
    return await unless_gone(request, written(work) if path else answer(work, request, stored=stored))


async def answer(work: Work, request: Request, *, stored: bool) -> Response:
    """Run a request and answer with its results, or with the addresses under which they are stored."""
    results = await work.result()
    if work.asked.accept is not None:
        return bare_response(results.entries[0])
    urls = []
    if stored:
        names = await kept(work.service.store, results.entries)
        urls = [str(request.url_for("mmout_result", name=name)) for name in names]
    return json_response(results.entries, tiles=results.tiles, processors=work.named, urls=urls)


async def kept(store: ResultStore, entries: list[Encoded]) -> list[str]:
    """Store results off the event loop, and name them; of a client that goes away meanwhile nothing is left."""
    return await in_thread(lambda: store.keep_all(entries), lambda names: store.remove(*names))
