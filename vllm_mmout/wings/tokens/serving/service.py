"""Hold the state that the HTTP routes share on a server whose model generates tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from vllm_mmout.errors import AbortedError, TokenError
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.metrics import observe
from vllm_mmout.serving.service import Service
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate
from vllm_mmout.wings.tokens.serving.prompt_tokens import PromptTokens
from vllm_mmout.wings.tokens.serving.sizes import Sizes

if TYPE_CHECKING:
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput

    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.wings.tokens.engine.async_llm import BoundTokenAsyncLLM
    from vllm_mmout.wings.tokens.engine.binding import TokenBinding
    from vllm_mmout.wings.tokens.processors.base import TokenProcessor

_ROUTES = {
    "image": "it makes pictures of texts: send a prompt to /v1/images/generations",
    "audio": "it speaks: send a text to /v1/audio/speech",
}


@dataclass(frozen=True, slots=True)
class Maker:
    """Objects that a server needs to make one kind of media (pictures or sounds) from a client's prompt."""

    name: str
    """Name of the output processor."""
    processor: TokenProcessor
    template: PromptTemplate
    prompts: PromptTokens | None
    """Encoder of prompts. None if the server runs without a tokenizer."""
    sizes: Sizes

    @classmethod
    def of(cls, name: str, processor: TokenProcessor, tokenizer: Any) -> Self:
        """Create the `Maker` that uses ``processor``. Blocks while the tokenizer is copied."""
        template = processor.prompt or PromptTemplate.parse(None, processor.layout.modality)
        prompts = None if tokenizer is None else PromptTokens(tokenizer, template, processor.layout)
        return cls(name, processor, template, prompts, Sizes(processor, template))

    def tokens(self, values: Mapping[str, str], param: str) -> list[int]:
        """Encode the prompt with the client's ``values`` in its placeholders. Errors name the request field ``param``.

        Blocks for some milliseconds.
        """
        if self.prompts is None:
            raise ApiError(
                400,
                "this server has no tokenizer, so it takes no text; start it without --skip-tokenizer-init",
                param=param,
            )
        return self.prompts.encode(values, param)


@dataclass(frozen=True, slots=True)
class GenerateArguments:
    """Arguments of ``AsyncLLM.generate`` for one request."""

    prompt: list[int]
    params: OutputParams
    """Options of the request, which include the name of the output processor and vLLM's sampling params."""
    request_id: str
    adapter: LoRARequest | None
    trace_headers: Mapping[str, str] | None = None
    """Trace headers from the client's request."""


@dataclass(frozen=True, slots=True)
class TokenService(Service):
    """Shared state of the HTTP routes, on a server whose model generates pictures or sounds as tokens."""

    engine: BoundTokenAsyncLLM
    makers: Mapping[str, Maker]
    """`Maker` for each kind of media that the model generates, by modality: "image" or "audio"."""
    usual: Mapping[str, Any]
    """Default sampling values from the model's ``generation_config.json``."""

    @classmethod
    def of(
        cls, engine: BoundTokenAsyncLLM, models: OpenAIServingModels, options: ServingOptions, store: ResultStore
    ) -> Self:
        """Create the service from objects of vLLM's server. Blocks while it reads files and copies the tokenizer."""
        makers: dict[str, Maker] = {}
        for name, processor in engine.output_processor.binding.processors.items():
            modality = processor.layout.modality
            if modality not in makers:
                makers[modality] = Maker.of(name, processor, engine.tokenizer)
        observer = observe(engine, models.registry.model_name())
        usual = engine.vllm_config.model_config.get_diff_sampling_param()  # each call reads the file
        return cls(engine, models, options, store, observer, makers, usual)

    @property
    def binding(self) -> TokenBinding:
        """Return the engine's `TokenBinding`, an object with the engine's output processors and limits."""
        return self.engine.output_processor.binding

    @property
    def gives(self) -> str:
        """Error message that says that the model gives pictures or speech, and names the right routes.

        The message is sent for requests to the wrong route.
        """
        return f"the model {self.binding.model!r} generates tokens, and {self._routes}"

    @property
    def chats(self) -> bool:
        """Return True, because clients may ask for pictures or sounds in chats on this server."""
        return True

    @property
    def _routes(self) -> str:
        return "; ".join(_ROUTES[modality] for modality in self.makers)

    def maker(self, modality: Literal["image", "audio"]) -> Maker:
        """Return the `Maker` (processor, prompts, sizes) of a modality. Raise ApiError if the model cannot make it."""
        if modality in self.makers:
            return self.makers[modality]
        lacking = {"image": "no pictures", "audio": "no speech"}[modality]
        raise ApiError(400, f"the model {self.binding.model!r} gives {lacking}; {self._routes}", param="model")

    def room_after(self, prompt: Sequence[int], param: str) -> int:
        """Return how many tokens may follow ``prompt``. Raise an ApiError if the prompt is too long.

        The error names the request field ``param``.
        """
        length = self.engine.vllm_config.model_config.max_model_len
        if len(prompt) >= length:
            raise ApiError(
                400,
                f"{param} makes a prompt of {len(prompt)} tokens, but the model's length is {length}; shorten it",
                param=param,
            )
        return length - len(prompt)

    async def generated(self, run: GenerateArguments) -> RequestOutput:
        """Run a generation with the arguments ``run`` until the answer ends, and return the engine's last output."""
        async with aclosing(self.running(run)) as outputs:
            return [output async for output in outputs][-1]

    async def running(self, run: GenerateArguments) -> AsyncGenerator[RequestOutput, None]:
        """Generate an answer with the arguments ``run``, and yield the outputs. The caller must close the generator."""
        last = None
        prompt: Any = {"prompt_token_ids": run.prompt}
        try:
            async with aclosing(
                self.engine.generate(
                    prompt, run.params, run.request_id, lora_request=run.adapter, trace_headers=run.trace_headers
                )
            ) as outputs:
                async for output in outputs:
                    last = output
                    yield output
        except Exception as error:
            raise generation_error(error, run.request_id) from error
        if last is None or any(answer.finish_reason == "abort" for answer in last.outputs):
            raise api_error(AbortedError("the engine gave no answer"), run.request_id)


def generation_error(error: Exception, request_id: str) -> ApiError:
    """Convert the exception of a failed generation to the error that the client gets."""
    if not isinstance(error, TokenError):
        return api_error(error, request_id)
    return ApiError(  # not the client's fault, but a changed request may help
        422,
        f"the model wrote tokens that are no picture or sound: {error}; send the request again, with another seed, a"
        " lower temperature, or allowed_token_ids",
    )
