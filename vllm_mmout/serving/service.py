"""Shared state of a server's routes, and the code that opens the input of a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.input_forms import is_open_file
from vllm_mmout.models.inputs.model_inputs import Raw
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.inputs.rgb_pictures import rgb_picture
from vllm_mmout.serving.inputs.sources import Sources

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
    from vllm_mmout.serving.request.fields import Fields
    from vllm_mmout.serving.response.store import ResultStore

Field: TypeAlias = Literal["image", "data", "prompt", "input"]
"""Name of the request field that holds the input: a picture in "image", any JSON in "data", a text in "prompt" or
"input"."""
TEXTS: Final = ("prompt", "input")
"""Names of the input fields that hold a text."""
_ROUTES: Final = {"audio": "/v1/audio/speech", "video": "/v1/videos"}
"""Maps a kind of result to the route that returns it, for error messages."""


@dataclass(frozen=True, slots=True)
class Service:
    """Shared state of a server's routes. The subclasses serve different kinds of models."""

    engine: Any
    models: OpenAIServingModels
    """vLLM's object that knows the names of the served model and its LoRA adapters."""
    options: ServingOptions
    store: ResultStore
    observer: Observer

    @property
    def gives(self) -> str:
        """Error message that names the kinds of results that the model gives, such as "audio", and the right route.

        The message is sent for requests to the wrong route.
        """
        raise NotImplementedError

    @property
    def chats(self) -> bool:
        """Whether this service, instead of vLLM, answers chats that ask for pictures or sounds."""
        return False

    async def generated_images(self, request: Request) -> Response:
        """Answer a request to ``/v1/images/generations``."""
        raise NotImplementedError

    def adapter(self, model: str | None) -> LoRARequest | None:
        """Return the LoRA adapter called ``model``, or None for the base model. Raise ApiError for unknown names."""
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
        """Return the engine's output processors and input mapper."""
        return self.engine.output_processor.binding

    @property
    def gives(self) -> str:
        """Error message that names the kinds of results that the model gives, such as "audio", and the right route.

        The message is sent for requests to the wrong route.
        """
        kinds = " and ".join(dict.fromkeys(processor.modality for processor in self.binding.processors.values()))
        route = _ROUTES.get(kinds, "/v1/images/edits")
        description = f"the model {self.binding.model!r} answers with {kinds}, not with text; use {route}"
        silent = [type(each).__name__ for each in self.binding.processors.values() if not _sets_modality(each)]
        if not silent:
            return description
        return (
            f"{description}. The class {' and '.join(silent)} has no modality of its own: if it returns AudioOutput or"
            ' VideoOutput, write modality = "audio" or "video" into it'
        )

    async def edited_images(self, request: Request, fields: Fields, held: AsyncExitStack) -> Response:
        """Answer ``/v1/images/edits`` or ``/v1/images/variations``. Exit stack ``held`` closes the uploaded files."""
        raise NotImplementedError

    def largest_input(self, params: OutputParams) -> PixelLimit | None:
        """Return the maximum number of pixels of each input file, or None for the server's default limit."""
        del params
        return None

    @contextmanager
    def opened(self, data: Any, params: OutputParams, field: Field) -> Iterator[Any]:
        """Open the input that a client sent in the field ``field``, and yield the object for ``engine.generate``.

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
        sources = self.sources.opened(
            data, texts=files, words=words, pictures=pictures, most=most, skip_failed=params.skip_failed
        )
        with nullcontext(data) if field in TEXTS else sources as opened:
            if own is not None and not is_open_file(opened):  # an IO plugin would open any path or address
                raise InputError(
                    f"output processor {own[0]!r} takes one file from a client; send it, or its address or data URL"
                )
            if own is None and inputs is None and is_open_file(opened):  # vLLM renders pictures, not files
                yield {"multi_modal_data": {"image": rgb_picture(opened)}}
            else:
                yield opened


def _sets_modality(processor: Any) -> bool:
    """Return whether a processor or its class sets ``modality``, rather than inheriting the default."""
    classes = [kind for kind in type(processor).__mro__ if kind is not OutputProcessor]
    return any("modality" in vars(kind) for kind in classes) or "modality" in getattr(processor, "__dict__", {})
