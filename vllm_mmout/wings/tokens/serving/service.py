"""TokenService: what the routes of one server share whose model generates tokens."""

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
from vllm_mmout.wings.tokens.serving.generations_route import generated_images
from vllm_mmout.wings.tokens.serving.prompt_tokens import PromptTokens
from vllm_mmout.wings.tokens.serving.sizes import Sizes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.outputs import RequestOutput

    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.wings.tokens.engine.async_llm import BoundTokenAsyncLLM
    from vllm_mmout.wings.tokens.engine.binding import TokenBinding
    from vllm_mmout.wings.tokens.processors.base import TokenProcessor
    from vllm_mmout.wings.tokens.serving.generations import Run

_ROUTES = {
    "image": "it makes pictures of texts: send a prompt to /v1/images/generations",
    "audio": "it speaks: send a text to /v1/audio/speech",
}


@dataclass(frozen=True, slots=True)
class Maker:
    """What makes the media of one modality."""

    name: str
    """Of the processor, in requests."""
    processor: TokenProcessor
    template: PromptTemplate
    prompts: PromptTokens | None
    """None on a server without a tokenizer."""
    sizes: Sizes

    @classmethod
    def of(cls, name: str, processor: TokenProcessor, tokenizer: Any) -> Self:
        """Make it; blocks."""
        template = processor.prompt or PromptTemplate.parse(None, processor.layout.modality)
        prompts = None if tokenizer is None else PromptTokens(tokenizer, template, processor.layout)
        return cls(name, processor, template, prompts, Sizes(processor, template))

    def tokens(self, values: Mapping[str, str], param: str) -> list[int]:
        """The prompt with these values in its places; blocks for some milliseconds. Errors name ``param``."""
        if self.prompts is None:
            raise ApiError(
                400,
                "this server has no tokenizer, so it takes no text; start it without --skip-tokenizer-init",
                param=param,
            )
        return self.prompts.encode(values, param)


@dataclass(frozen=True, slots=True)
class TokenService(Service):
    """Of a server whose model generates tokens, some of which are pictures or sounds."""

    engine: BoundTokenAsyncLLM
    makers: Mapping[str, Maker]
    """By modality, of the first processor of each."""
    usual: Mapping[str, Any]
    """Sampling fields of the model's ``generation_config.json``."""

    @classmethod
    def of(
        cls, engine: BoundTokenAsyncLLM, models: OpenAIServingModels, options: ServingOptions, store: ResultStore
    ) -> Self:
        """Make it of what vLLM's server has made; blocks."""
        makers: dict[str, Maker] = {}
        for name, processor in engine.output_processor.binding.processors.items():
            modality = processor.layout.modality
            if modality not in makers:
                makers[modality] = Maker.of(name, processor, engine.tokenizer)
        observer = observe(engine, models.registry.model_name())
        usual = engine.vllm_config.model_config.get_diff_sampling_param()  # read anew by each call
        return cls(engine, models, options, store, observer, makers, usual)

    @property
    def binding(self) -> TokenBinding:
        """The engine's processors."""
        return self.engine.output_processor.binding

    @property
    def gives(self) -> str:
        """What the model does, and where it is asked, for messages."""
        return f"the model {self.binding.model!r} generates tokens, and {self._routes}"

    @property
    def chats(self) -> bool:
        """Media in chats are looked at by `MediaChat`."""
        return True

    @property
    def _routes(self) -> str:
        return "; ".join(_ROUTES[modality] for modality in self.makers)

    async def generated_images(self, request: Request) -> Response:
        """Answer ``/v1/images/generations``: a text in, pictures out."""
        return await generated_images(request, self)

    def maker(self, modality: Literal["image", "audio"]) -> Maker:
        """What makes media of a modality."""
        if modality in self.makers:
            return self.makers[modality]
        given = {"image": "no pictures", "audio": "no speech"}[modality]
        raise ApiError(400, f"the model {self.binding.model!r} gives {given}; {self._routes}", param="model")

    def room_after(self, prompt: Sequence[int], param: str) -> int:
        """Tokens that the model's length leaves after a prompt, which was made of the field ``param``; at least one."""
        length = self.engine.vllm_config.model_config.max_model_len
        if len(prompt) >= length:
            raise ApiError(
                400,
                f"{param} makes a prompt of {len(prompt)} tokens, and the model's length is {length}; shorten it",
                param=param,
            )
        return length - len(prompt)

    async def generated(self, run: Run) -> RequestOutput:
        """Run one request to its end; its last output."""
        async with aclosing(self.running(run)) as outputs:
            return [output async for output in outputs][-1]

    async def running(self, run: Run) -> AsyncGenerator[RequestOutput, None]:
        """Run one request, and give its outputs as they come, at least one; whoever takes them closes it."""
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
    """What a client is told of a failed generation."""
    if not isinstance(error, TokenError):
        return api_error(error, request_id)
    return ApiError(  # what the model wrote is nobody's fault, but can be helped by who asks
        422,
        f"the model wrote tokens that are no picture or sound: {error}; send the request again, with another seed, a"
        " lower temperature, or allowed_token_ids",
    )
