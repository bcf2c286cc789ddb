"""``LLM`` on a bound engine: ``generate`` returns decoded objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from vllm.v1.engine.llm_engine import LLMEngine

from vllm_mmout.engine.bar import Bar
from vllm_mmout.engine.inputs import check_targets
from vllm_mmout.engine.io_plugin import TASK, naming_plugin
from vllm_mmout.engine.llm_requests import Wanted
from vllm_mmout.engine.llm_run import Run
from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from tqdm.auto import tqdm
    from vllm.lora.request import LoRARequest
    from vllm.outputs import PoolingRequestOutput, RequestOutput

    from vllm_mmout.engine.interrupts import Interrupts
    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.engine.routed import RoutedOutputProcessor


class BoundLLMEngine(LLMEngine):
    """vLLM's synchronous engine whose outputs are decoded."""

    output_processor: RoutedOutputProcessor
    mmout_interrupts: Interrupts

    def step(self) -> list[RequestOutput | PoolingRequestOutput[Any]]:
        """As vLLM's; with decodes pending and nothing left in the engine it waits for the decoders.

        It never raises for a request: a failed one comes back with its ``error``.
        """
        router = self.output_processor
        if router.holds_the_rest:
            return [*router.wait_ready()]
        with self.mmout_interrupts.held_back():
            outputs = super().step()
        return [*outputs, *router.take_ready()]

    def add_request(self, *args: Any, **kwargs: Any) -> str:
        """As vLLM's."""
        with self.mmout_interrupts.held_back():
            return super().add_request(*args, **kwargs)

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:  # noqa: FBT001, FBT002 - as vLLM's
        """As vLLM's."""
        with self.mmout_interrupts.held_back():
            super().abort_request(request_ids, internal)


class LLMGenerate:
    """The methods of ``LLM`` that a bound engine replaces; mixed into the class of the bound object alone."""

    llm_engine: BoundLLMEngine
    request_counter: Any
    pooling_task: Any
    pooling_io_processors: Any

    def generate(
        self,
        inputs: Any,
        params: OutputParams | Sequence[OutputParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., tqdm[Any]] = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[MultimodalRequestOutput]:
        """Run the model on inputs and decode what it emits.

        Args:
            inputs: one input or a list of them. An input is a path or URL (``file``, ``http``, ``https``), bytes or a
                file object of an image file, a PIL image, an array or tensor [bands, height, width], or vLLM's prompt
                dict. Several files are one input as a folder, as a mapping of band names to files, or as a list within
                the list of inputs, ``[["b2.tif", "b3.tif"]]``: their bands in that order, or, for a model with dates,
                one of these forms for each date.
            params: options, one for all inputs or one each.
            use_tqdm: whether to show a progress bar, or what makes one.
            priority: priority of the requests, the lower the earlier (with the priority scheduling policy).
            lora_request: LoRA adapter, one for all or one each.

        Returns:
            One result an input, in their order. In a list the place of a failed input holds a result whose ``error`` is
            the exception and whose ``outputs`` raises it.

        Raises:
            OptionError: the params do not fit the model or the inputs.
            MMOutError: the only input (not in a list) failed.

        """
        single = not isinstance(inputs, list | tuple)
        wanted = _pair([inputs] if single else list(inputs), params, priority, lora_request)
        binding = self.llm_engine.output_processor.binding
        for options in {id(want.params): want.params for want in wanted}.values():
            binding.check_params(options)
            if options.partial_images:
                raise OptionError(
                    "partial images come from AsyncLLM.generate and the server; leave"
                    f" partial_images={options.partial_images} out",
                    param="partial_images",
                )
        check_targets((want.data, want.params) for want in wanted)
        bar = Bar(use_tqdm, len(wanted))
        try:
            # In a context of its own: what an interrupt leaves there is nobody else's.
            results = copy_context().run(Run(self, binding, wanted, bar).results)
        finally:
            bar.close()
        if single and results[0].error is not None:
            raise results[0].error
        return results

    def encode(
        self,
        prompts: Any,
        pooling_params: Any = None,
        *,
        use_tqdm: bool | Callable[..., tqdm[Any]] = True,
        lora_request: LoRARequest | Sequence[LoRARequest] | None = None,
        pooling_task: Any = None,
        **kwargs: Any,
    ) -> list[PoolingRequestOutput[Any]]:
        """As vLLM's; ``{"data": ...}`` for the IO Processor plugin ``mmout`` is run by `generate`."""
        plugin = naming_plugin(self.pooling_io_processors)
        if plugin is not None and pooling_task == TASK and isinstance(prompts, dict) and "data" in prompts:
            return [plugin.run(self, prompts["data"], use_tqdm=use_tqdm, lora_request=lora_request)]
        vllms: Any = super(type(self), self)  # this method stands in a class that is made of the object's own
        outputs: list[PoolingRequestOutput[Any]] = vllms.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task=pooling_task,
            **kwargs,
        )
        return outputs


def _pair(
    inputs: list[Any],
    params: OutputParams | Sequence[OutputParams] | None,
    priority: int | Sequence[int] | None,
    lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
) -> list[Wanted]:
    columns = [
        _spread("params", OutputParams() if params is None else params, len(inputs)),
        _spread("priority", 0 if priority is None else priority, len(inputs)),
        _spread("lora_request", lora_request, len(inputs)),
    ]
    wanted = [Wanted(data, *row) for data, *row in zip(inputs, *columns, strict=True)]
    for want in wanted:
        if not isinstance(want.params, OutputParams):
            raise OptionError(
                f"params must be OutputParams, got {type(want.params).__name__}; this model's output is decoded, not"
                " sampled. LLM.encode gives its raw tensors"
            )
    return wanted


def _spread(name: str, value: Any, count: int) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise OptionError(f"{count} inputs and {len(value)} {name}; give one for all, or one for each input")
    return list(value)
