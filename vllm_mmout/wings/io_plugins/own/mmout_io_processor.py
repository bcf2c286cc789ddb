"""IO Processor plugin ``mmout``: accepts requests written for TerraTorch's plugin, and runs the model on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel
from vllm.outputs import PoolingRequestOutput
from vllm.plugins.io_processors.interface import IOProcessor
from vllm.pooling_params import PoolingParams

from vllm_mmout.engine.binding import resolve_choice
from vllm_mmout.engine.hooks.client_errors import InvalidInputError, InvalidOptionError, as_client_error
from vllm_mmout.engine.threads import entered, in_thread
from vllm_mmout.errors import InputError, MMOutError, SaveError
from vllm_mmout.models.inputs.input_forms import is_open_file
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.inputs.rgb_pictures import rgb_picture
from vllm_mmout.serving.inputs.sources import Sources
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.request.asked_limits import check_request
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.encode import encode, response_of
from vllm_mmout.serving.response.responses import pieces
from vllm_mmout.wings.io_plugins.own.mmout_plugin import KEY, TASK, MMOutPlugin, PromptRequest
from vllm_mmout.wings.io_plugins.own.plugin_binding import check_engine
from vllm_mmout.wings.io_plugins.own.plugin_data import PluginData, checked_input, plugin_data

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.renderers import BaseRenderer

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
    from vllm_mmout.engine.request.llm import BoundLLM

_LAST_REQUEST: ContextVar[PromptRequest | None] = ContextVar("mmout_named_request", default=None)
"""Request of the latest `pre_process` call in this thread or asyncio task.

`merge_pooling_params` adds the request to the pooling params.
"""


class PluginOutput(BaseModel):
    """Response of the plugin ``mmout``, with the same fields as a response of TerraTorch's plugin."""

    data_format: Literal["b64_json", "path"]
    data: str
    """File content in base64, or the path of the file to which the result was written."""
    request_id: str | None = None


class MMOutIOProcessor(IOProcessor[PluginData, PluginOutput], MMOutPlugin):
    """IO Processor plugin for clients of TerraTorch's plugin. The model's own output processor computes the result.

    A caller of vLLM's interface may be a client of a server, so ``allowed_local_media_path`` and
    ``allowed_media_domains`` limit the files and hosts that a request may name. ``LLM.encode`` may name any file.
    """

    def __init__(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> None:
        super().__init__(vllm_config, renderer)
        check_engine(vllm_config, bound=resolve_choice(vllm_config) is not None)
        model_config = vllm_config.model_config
        self._options = ServingOptions()
        self._sources = Sources(
            self._options,
            local_path=model_config.allowed_local_media_path or None,
            domains=model_config.allowed_media_domains,
        )

    def parse_data(self, data: object) -> PluginData:
        """Check a client's data, and return it as a typed request."""
        try:
            return plugin_data(data)
        except ApiError as error:
            raise _client_error(error) from None

    def pre_process(self, prompt: PluginData, request_id: str | None = None, **kwargs: Any) -> Any:
        """Return a prompt for vLLM that holds the client's request.

        Files are not read here, because this runs on the event loop.
        """
        request = _ClientRequest(prompt, self._sources, self._options)
        _LAST_REQUEST.set(request)
        return {"prompt_token_ids": [1], KEY: request}

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """Return the pooling params, extended with the request of the preceding `pre_process` call.

        vLLM drops the request from the prompt, but passes on the pooling params unchanged.
        """
        request = _LAST_REQUEST.get()
        _LAST_REQUEST.set(None)
        merged = params or PoolingParams(task=TASK)
        if request is not None:
            merged.extra_kwargs = {**(merged.extra_kwargs or {}), KEY: request}
        return merged

    def post_process(
        self, model_output: Sequence[PoolingRequestOutput[Any]], request_id: str | None = None, **kwargs: Any
    ) -> PluginOutput:
        """Return the response in ``model_output``. The engine's ``encode`` has already computed the response."""
        (output,) = model_output
        answer: PluginOutput = output.outputs
        return answer.model_copy(update={"request_id": request_id or answer.request_id})

    def run(self, llm: BoundLLM, data: Any, *, use_tqdm: Any, lora_request: Any) -> PoolingRequestOutput[Any]:
        """Run a request from ``LLM.encode``, and return its output. The request may name any local file."""
        try:
            plugin_request = plugin_data(data, local=True)
            binding = llm.llm_engine.output_processor.binding
            name = plugin_request.check(binding)
            params = plugin_request.params_of(binding, name)
            (result,) = llm.generate([plugin_request.local_input], params, use_tqdm=use_tqdm, lora_request=lora_request)
            output = result.outputs
        except (ApiError, MMOutError) as error:
            raise _client_error(error) from error.__cause__
        if plugin_request.out_data_format == "path":
            return _answer(result.request_id, "path", output.path)
        budget = AnswerBudget(self._options.max_answer)
        return _answer(result.request_id, "b64_json", _base64(plugin_request, binding, name, output, budget))


@dataclass(frozen=True, slots=True, eq=False)
class _ClientRequest(PromptRequest):
    """Client's request, carried inside a prompt. The engine's ``encode`` takes it from the prompt and runs it."""

    asked: PluginData
    sources: Sources
    options: ServingOptions

    async def outputs(
        self, engine: BoundAsyncLLM, request_id: str, generate_options: Mapping[str, Any]
    ) -> AsyncGenerator[PoolingRequestOutput[Any], None]:
        """Run the request, and yield one output with the result as base64. Closing the generator aborts the request."""
        try:
            text = await self._run(engine, request_id, generate_options)
        except (ApiError, MMOutError) as error:
            raise _client_error(error) from error.__cause__
        yield _answer(request_id, "b64_json", text)

    async def _run(self, engine: BoundAsyncLLM, request_id: str, generate_options: Mapping[str, Any]) -> str:
        binding = engine.output_processor.binding
        name = self.asked.check(binding)
        check_request(binding, self.asked.params, self.asked.data, self.options)
        async with entered(self._opened(binding)) as opened:
            outputs = engine.generate(
                opened,
                self.asked.params,
                request_id,
                **generate_options,
                max_tiles=self.options.max_tiles,
                max_area=self.options.max_area,
                max_pixels=self.options.max_pixels,
                warn=False,  # the warnings are in the metadata of the answer's file
            )
            async with aclosing(outputs):
                async for output in outputs:
                    last = output
        budget = AnswerBudget(self.options.max_answer)
        work = partial(_base64, self.asked, binding, name, last.outputs, budget)  # it closes the output
        return await in_thread(work, stop=budget.abandon)

    @contextmanager
    def _opened(self, binding: Binding) -> Iterator[Any]:
        """Open the request's input, and yield it in a form that the engine's ``generate`` accepts. The call blocks."""
        with self.sources.opened(checked_input(self.asked, self.options.max_upload)) as opened:
            if binding.inputs is None and is_open_file(opened):  # vLLM renders pictures, not files
                yield {"multi_modal_data": {"image": rgb_picture(opened)}}
            else:
                yield opened


def _answer(request_id: str, data_format: Literal["b64_json", "path"], data: str) -> PoolingRequestOutput[Any]:
    answer = PluginOutput(data_format=data_format, data=data, request_id=request_id)
    return PoolingRequestOutput(request_id, answer, [], 0, finished=True)


def _base64(plugin_request: PluginData, binding: Binding, name: str, output: Any, budget: AnswerBudget) -> str:
    """Return a result as a base64-encoded file, and close the result. The call blocks."""
    try:
        entry = encode(
            output,
            plugin_request.format_choice,
            response_of(binding.processors[name], plugin_request.params),
            budget=budget,
        )
        try:
            return b"".join(pieces([entry], as_text=True)).decode("ascii")
        finally:
            entry.close()
    finally:
        if hasattr(output, "close"):
            output.close()


def _client_error(error: ApiError | MMOutError) -> Exception:
    """Convert an error about the client's data to an exception that vLLM's server answers with status 400."""
    if isinstance(error, ApiError):
        return InvalidOptionError(_plain(error.message), param=_plain(error.param))
    if isinstance(error, SaveError) and not isinstance(error.__cause__, OSError):
        return InvalidOptionError(str(error), param=error.param or "image_format")
    if isinstance(error, InputError):
        return InvalidInputError(_plain(str(error)), param=error.param or "data")
    return as_client_error(error)


def _plain(text: str | None) -> Any:
    """Replace each character that UTF-8 cannot encode, such as a surrogate, with "?"."""
    return text and text.encode(errors="replace").decode()
