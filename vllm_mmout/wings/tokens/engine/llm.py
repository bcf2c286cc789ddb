"""Decode pictures and sounds in the answers of vLLM's ``LLM``, for models that generate them as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm import LLM
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams

from vllm_mmout.engine.binding import rebase
from vllm_mmout.engine.request.llm_engine import BoundLLMEngine
from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.tokens.engine.binding import TokenBinding
from vllm_mmout.wings.tokens.engine.outputs import TokenRequestOutput, with_error_field
from vllm_mmout.wings.tokens.engine.request import TokenRequest, with_request, without_own_options
from vllm_mmout.wings.tokens.engine.routed import TokenOutputProcessor


class BoundTokenEngine(BoundLLMEngine):
    """vLLM's ``LLMEngine`` inside `BoundTokenLLM`, for models that generate pictures or sounds as tokens."""

    output_processor: TokenOutputProcessor  # type: ignore[assignment]

    def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> str:
        """Add a request, as vLLM does, but do not send this package's own options to the engine process."""
        with without_own_options(params) as sent:
            return super().add_request(request_id, prompt, sent, *args, **kwargs)


class BoundTokenLLM(LLM):
    """vLLM's ``LLM``, which also decodes the pictures and sounds that a model generates as tokens."""

    llm_engine: BoundTokenEngine

    def generate(self, prompts: Any, sampling_params: Any = None, **kwargs: Any) -> list[RequestOutput]:
        """Generate answers, as vLLM's ``LLM.generate`` does, and decode the pictures and sounds in the answers.

        Args:
            prompts: prompts, as in vLLM.
            sampling_params: vLLM's ``SamplingParams``, or `OutputParams` that hold them as ``sampling``. Give one for
                all prompts, or one per prompt.
            kwargs: further arguments of vLLM's ``generate``.

        Returns:
            One result per prompt, in order. Each of its ``outputs`` is a `MultimodalCompletionOutput`: its ``text`` has
            no media tokens, and ``multimodal`` holds the pictures and sounds. ``error`` of a result is None. If a
            prompt of a list fails, its result is a `TokenRequestOutput`, whose ``error`` is the exception and whose
            ``outputs`` raises it.

        Raises:
            OptionError: this model does not support an option of `OutputParams`.
            MMOutError: the only prompt (not in a list) failed.

        """
        binding = self.llm_engine.output_processor.binding
        params = _sampling(sampling_params, binding, self.get_default_sampling_params)
        single = not isinstance(prompts, list | tuple) or isinstance(
            next(iter(prompts), None), int
        )  # one prompt as token ids
        with self.llm_engine.mmout.delayed(self.llm_engine.wake):
            return _with_failures(super().generate(prompts, params, **kwargs), single=single)

    def chat(self, messages: Any, sampling_params: Any = None, *args: Any, **kwargs: Any) -> list[RequestOutput]:
        """Answer chat messages, as vLLM's ``LLM.chat`` does, and decode the pictures and sounds in the answers.

        ``sampling_params`` and the results are as in `generate`. Several conversations are given as a list.

        Raises:
            OptionError: this model does not support an option of `OutputParams`.
            MMOutError: the only conversation (not in a list) failed.

        """
        binding = self.llm_engine.output_processor.binding
        params = _sampling(sampling_params, binding, self.get_default_sampling_params)
        single = not (messages and isinstance(messages[0], list | tuple))
        with self.llm_engine.mmout.delayed(self.llm_engine.wake):
            return _with_failures(super().chat(messages, params, *args, **kwargs), single=single)

    def wait_for_completion(  # type: ignore[override]  # vLLM's returns any kind of output, this only one kind
        self, *args: Any, **kwargs: Any
    ) -> list[RequestOutput]:
        """Wait until all enqueued requests are complete and their media are decoded. Return one result per prompt.

        The result of a failed prompt is a `TokenRequestOutput`, whose ``error`` is the exception.
        """
        with self.llm_engine.mmout.delayed(self.llm_engine.wake):
            return _with_failures(super().wait_for_completion(*args, **kwargs), single=False)


def _with_failures(outputs: list[RequestOutput], *, single: bool) -> list[RequestOutput]:
    """Turn the result of each failed prompt into a `TokenRequestOutput`. For a single prompt, raise the error.

    This must run after vLLM's loop, which reads ``outputs`` of all results.
    """
    for output in outputs:
        if with_error_field(output).error is not None:
            rebase(output, TokenRequestOutput)
    if single and outputs and isinstance(outputs[0], TokenRequestOutput):
        raise outputs[0].error
    return outputs


def _sampling(params: Any, binding: TokenBinding, default: Any) -> Any:
    """Convert `OutputParams`, or a list of them, to vLLM's sampling params, and attach the options that vLLM lacks."""
    if isinstance(params, Sequence):
        return [_sampling(entry, binding, default) for entry in params]
    if not isinstance(params, OutputParams):
        return params
    for option in ("chunk_seconds", "partial_images"):
        if getattr(params, option):
            raise OptionError(
                f"only AsyncLLM.generate and the server return growing media; leave {option} out", param=option
            )
    return with_request(sampling_of(params, binding, default), TokenRequest(params))


def sampling_of(params: OutputParams, binding: TokenBinding, default: Any) -> SamplingParams:
    """Check a request's options. Return the request's sampling params, or ``default()`` if the request has none."""
    binding.check_params(params)
    if params.sampling is None:
        sampling: SamplingParams = default()
        return sampling
    if not isinstance(params.sampling, SamplingParams):
        raise OptionError(
            f"sampling must be vLLM's SamplingParams, got {type(params.sampling).__name__}", param="sampling"
        )
    return params.sampling
