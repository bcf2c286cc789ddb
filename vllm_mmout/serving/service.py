"""Service: what the routes of one server share, and one request's way through its engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
from vllm_mmout.engine.threads import entered
from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.input_forms import Raw, is_open_file
from vllm_mmout.serving.answers import answered_images
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.inputs.sources import Sources, rgb_picture
from vllm_mmout.serving.metrics import count_refusal, observe
from vllm_mmout.serving.request.fields import generation_request
from vllm_mmout.serving.request.json_body import read_json

if TYPE_CHECKING:
    from argparse import Namespace

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
    from vllm_mmout.serving.response.store import ResultStore

Field: TypeAlias = Literal["image", "data", "prompt"]
"""The field of a request that holds its input: files, any JSON, or a text."""


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

    @classmethod
    def of(
        cls,
        engine: BoundAsyncLLM,
        models: OpenAIServingModels,
        args: Namespace,
        options: ServingOptions,
        store: ResultStore,
    ) -> ForwardService:
        """Make it of what vLLM's server has made."""
        sources = Sources(
            options,
            local_path=getattr(args, "allowed_local_media_path", "") or None,
            domains=getattr(args, "allowed_media_domains", None),
        )
        return cls(engine, models, options, store, observe(engine, models.registry.model_name()), sources)

    @property
    def binding(self) -> Binding:
        """The engine's processors and inputs."""
        return self.engine.output_processor.binding

    @property
    def gives(self) -> str:
        """What the model does, and where it is asked, for messages."""
        kinds = " and ".join(dict.fromkeys(processor.modality for processor in self.binding.processors.values()))
        return f"the model {self.binding.model!r} answers with {kinds}, and speaks no text; ask /v1/images/edits"

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

    async def results(
        self,
        data: Any,
        params: OutputParams,
        request_id: str,
        adapter: LoRARequest | None = None,
        field: Field = "image",
        *,
        watch: PreviewRequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run one request; its files are open as long as it runs."""
        try:
            async with entered(self._opened(data, params, field)) as opened:
                outputs = self.engine.generate(
                    opened,
                    params,
                    request_id,
                    lora_request=adapter,
                    priority=priority,
                    max_tiles=self.options.max_tiles,
                    watch=watch,
                    folder=self.store.shared.work,
                )
                async with aclosing(outputs):
                    async for output in outputs:
                        yield output
        except Exception as error:
            count_refusal(self.observer, error)
            if isinstance(error, InputError) and error.param is None:
                error.param = field
            raise api_error(error, request_id) from error

    @contextmanager
    def _opened(self, data: Any, params: OutputParams, field: Field) -> Iterator[Any]:
        """What the engine takes, open; blocks."""
        self.store.shared.enter()  # the result is made there
        own = self.binding.own_inputs(params)
        if own is not None:
            with self._file_for(own[0], data, field) as file:
                yield file
            return
        inputs = self.binding.inputs
        files = inputs is None or inputs.opens_files
        if field == "prompt" or (field == "data" and not files):
            # Wrapped, so that nothing in it is taken for a prompt of vLLM's or for tensors by keyword.
            yield data if inputs is None else Raw(data)
            return
        with self.sources.opened(data, texts=files) as opened:
            if inputs is None and is_open_file(opened):  # vLLM renders pictures, not files
                yield {"multi_modal_data": {"image": rgb_picture(opened)}}
            else:
                yield opened

    @contextmanager
    def _file_for(self, plugin: str, data: Any, field: Field) -> Iterator[Any]:
        """The one file that a client may hand an IO plugin, which would read any path or address that it is given."""
        if field != "prompt":
            with self.sources.opened(data) as opened:
                if is_open_file(opened):
                    yield opened
                    return
        raise InputError(
            f"output processor {plugin!r} takes one file from a client; send it, or its address or data URL"
        )
