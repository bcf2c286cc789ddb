"""``LLM`` on a bound engine that generates tokens: ``generate`` as vLLM's, with decoded media in its answers."""

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
from vllm_mmout.wings.tokens.engine.outputs import TokenRequestOutput, without_error
from vllm_mmout.wings.tokens.engine.request import TokenRequest, sent_apart, with_request
from vllm_mmout.wings.tokens.engine.routed import TokenOutputProcessor


class BoundTokenEngine(BoundLLMEngine):
    """vLLM's synchronous engine that generates tokens, some of which are decoded."""

    output_processor: TokenOutputProcessor  # type: ignore[assignment]

    def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> str:
        """As vLLM's."""
        with sent_apart(params) as sent:
            return super().add_request(request_id, prompt, sent, *args, **kwargs)


class BoundTokenLLM(LLM):
    """vLLM's ``LLM`` on a bound engine whose model generates tokens, some of which are decoded."""

    llm_engine: BoundTokenEngine

    def generate(self, prompts: Any, sampling_params: Any = None, **kwargs: Any) -> list[RequestOutput]:
        """As vLLM's; media among the tokens come as objects.

        Args:
            prompts: as vLLM's.
            sampling_params: vLLM's ``SamplingParams``, or `OutputParams` with these as ``sampling``; one for all
                prompts, or one each.
            kwargs: as vLLM's.

        Returns:
            One result a prompt, in their order. Each of its ``outputs`` is a `MultimodalCompletionOutput`: its ``text``
            is without media tokens, ``multimodal`` holds the pictures and sounds. ``error`` of a result is None. In a
            list of prompts the place of a failed one holds a `TokenRequestOutput`, whose ``error`` is the exception and
            whose ``outputs`` raises it.

        Raises:
            OptionError: an option of `OutputParams` is not for this model.
            MMOutError: the only prompt (not in a list) failed.

        """
        binding = self.llm_engine.output_processor.binding
        params = _sampling(sampling_params, binding, self.get_default_sampling_params)
        single = not isinstance(prompts, list | tuple) or isinstance(next(iter(prompts), None), int)  # the ids of one
        return _told(super().generate(prompts, params, **kwargs), single=single)

    def chat(self, messages: Any, sampling_params: Any = None, *args: Any, **kwargs: Any) -> list[RequestOutput]:
        """As vLLM's; ``sampling_params`` and results as of `generate`, several conversations being a list.

        Raises:
            OptionError: an option of `OutputParams` is not for this model.
            MMOutError: the only conversation (not in a list) failed.

        """
        binding = self.llm_engine.output_processor.binding
        params = _sampling(sampling_params, binding, self.get_default_sampling_params)
        single = not (messages and isinstance(messages[0], list | tuple))
        return _told(super().chat(messages, params, *args, **kwargs), single=single)

    def wait_for_completion(  # type: ignore[override]  # of any kind of output: there is one
        self, *args: Any, **kwargs: Any
    ) -> list[RequestOutput]:
        """As vLLM's; results as of `generate` with a list of prompts."""
        return _told(super().wait_for_completion(*args, **kwargs), single=False)


def _told(outputs: list[RequestOutput], *, single: bool) -> list[RequestOutput]:
    """Results, of which failed ones say so; vLLM's loop has read their ``outputs`` and needs them no more."""
    for output in outputs:
        if without_error(output).error is not None:
            rebase(output, TokenRequestOutput)
    if single and outputs and isinstance(outputs[0], TokenRequestOutput):
        raise outputs[0].error
    return outputs


def _sampling(given: Any, binding: TokenBinding, default: Any) -> Any:
    """Sampling params as vLLM takes them, which say what else is asked."""
    if isinstance(given, Sequence):
        return [_sampling(one, binding, default) for one in given]
    if not isinstance(given, OutputParams):
        return given
    for option in ("chunk_seconds", "partial_images"):
        if getattr(given, option):
            raise OptionError(
                f"media that grow are to be had of AsyncLLM.generate and the server; leave {option} out", param=option
            )
    return with_request(sampling_of(given, binding, default), TokenRequest(given))


def sampling_of(params: OutputParams, binding: TokenBinding, default: Any) -> SamplingParams:
    """The sampling params in a request's options."""
    binding.check_params(params)
    if params.sampling is None:
        found: SamplingParams = default()
        return found
    if not isinstance(params.sampling, SamplingParams):
        raise OptionError(
            f"sampling must be vLLM's SamplingParams, got {type(params.sampling).__name__}", param="sampling"
        )
    return params.sampling
