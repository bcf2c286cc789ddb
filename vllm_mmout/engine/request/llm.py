"""Synchronous engine whose ``generate`` returns images, rasters or other decoded objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from vllm import LLM

from vllm_mmout.engine.mosaic.llm_mosaics import Mosaics, check_folders
from vllm_mmout.engine.mosaic.mosaic import Mosaic
from vllm_mmout.engine.request.llm_call import Call
from vllm_mmout.engine.request.progress_bar import Bar
from vllm_mmout.engine.request.request import Request
from vllm_mmout.engine.request.target import check_targets
from vllm_mmout.engine.request_output import warn_assumed
from vllm_mmout.errors import OptionError
from vllm_mmout.models.inputs.catalogued import expanded
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from tqdm.auto import tqdm
    from vllm.lora.request import LoRARequest
    from vllm.outputs import PoolingRequestOutput

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.llm_call import StoreResult
    from vllm_mmout.engine.request.llm_engine import BoundLLMEngine
    from vllm_mmout.engine.request_output import MultimodalRequestOutput


class BoundLLM(LLM):
    """vLLM's ``LLM`` for a pooling model with output processors. Its ``generate`` returns decoded objects."""

    llm_engine: BoundLLMEngine
    pooling_task: Any

    def generate(  # type: ignore[override]  # the result of a bound engine is no text
        self,
        inputs: Any,
        params: OutputParams | Sequence[OutputParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., tqdm[Any]] = True,
        priority: int | Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        may_be_empty: bool | Sequence[bool] = False,
    ) -> list[MultimodalRequestOutput]:
        """Run the model on inputs and decode its outputs.

        Args:
            inputs: one input or a list of them. An input is a path or URL (``file``, ``http``, ``https``), bytes or a
                file object of an image file, a PIL image, an array or tensor [bands, height, width], or vLLM's prompt
                dict. Several files are one input as a folder, as a mapping of band names to files, or as a list within
                the list of inputs, ``[["b2.tif", "b3.tif"]]``: their bands in that order, or, for a model with dates,
                one of these forms for each date. A `Mosaic` is one input of several scenes, whose results become one
                map, or a map of each day. With the extra "stac", an input may be a STAC item, and an item collection is
                as many inputs as it has items.
            params: options for all inputs, or a list with the options of each input.
            use_tqdm: whether to show a progress bar, or a function that makes one.
            priority: priority of the requests; lower values run earlier (with the priority scheduling policy).
            lora_request: LoRA adapter for all inputs, or a list with the adapter of each input.
            may_be_empty: whether an input without valid pixels gives a result of nodata, for all inputs or for each. By
                default such an input is refused if it fits one forward pass.

        Returns:
            A result for each input, in the order of the inputs. If an input of a list fails, the ``error`` of its
            result is the exception, and reading its ``outputs`` raises the exception.

        Raises:
            OptionError: the params do not fit the model or the inputs.
            MMOutError: an input that was not given in a list failed.

        Warns:
            AssumedWarning: an assumption was made about an input, which `MultimodalRequestOutput.assumed` lists.

        """
        single = not isinstance(inputs, list | tuple)
        inputs = [each for data in ([inputs] if single else inputs) for each in expanded(data)]
        requests = _requests(len(inputs), params, priority, lora_request, may_be_empty)
        binding = self.llm_engine.output_processor.binding
        for options in {id(request.params): request.params for request in requests}.values():
            binding.check_params(options)
            if options.partial_images:
                raise OptionError(
                    "partial images come from AsyncLLM.generate and the server; leave"
                    f" partial_images={options.partial_images} out",
                    param="partial_images",
                )
        sources = [list(data.inputs) if isinstance(data, Mosaic) else data for data in inputs]
        check_folders(inputs, [request.params for request in requests])
        check_targets(binding, ((data, request.params) for data, request in zip(sources, requests, strict=True)))
        if any(isinstance(data, Mosaic) or each.params.mosaic for data, each in zip(inputs, requests, strict=True)):
            with closing(Mosaics.of(binding, inputs, requests)) as mosaics:
                scenes = self._results(
                    binding, mosaics.inputs, mosaics.requests, use_tqdm, store_result=mosaics.store_result
                )
                results = mosaics.joined(scenes)
        else:
            results = self._results(binding, inputs, requests, use_tqdm)
        if single and len(results) == 1 and results[0].error is not None:
            raise results[0].error
        warn_assumed(results, stacklevel=3)
        return results

    def _results(
        self, binding: Binding, inputs: list[Any], requests: list[Request], use_tqdm: Any, **call_options: StoreResult
    ) -> list[MultimodalRequestOutput]:
        bar = Bar(use_tqdm, len(inputs))
        try:
            # A second Ctrl-C may leave the ticket of a request behind, in this copy of the context.
            return copy_context().run(Call(self, binding, inputs, requests, bar, **call_options).results)
        finally:
            bar.close()

    def encode(self, *args: Any, **kwargs: Any) -> list[PoolingRequestOutput[Any]]:
        """Return the model's raw tensors as vLLM does. A Ctrl-C is handled between two steps of the engine."""
        with self.llm_engine.mmout.delayed(self.llm_engine.wake):
            return super().encode(*args, **kwargs)


def _requests(
    count: int,
    params: OutputParams | Sequence[OutputParams] | None,
    priority: int | Sequence[int] | None,
    lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
    may_be_empty: bool | Sequence[bool],  # noqa: FBT001 - one of the columns
) -> list[Request]:
    """Create a request for each of ``count`` inputs. Options may be given once for all, or for each input."""
    columns = [
        _spread("params", OutputParams() if params is None else params, count),
        _spread("priority", 0 if priority is None else priority, count),
        _spread("lora_request", lora_request, count),
        _spread("may_be_empty", may_be_empty, count),
    ]
    for options in columns[0]:
        if not isinstance(options, OutputParams):
            raise OptionError(
                f"params must be OutputParams, got {type(options).__name__}; this model's output is decoded, not"
                " sampled. LLM.encode gives its raw tensors"
            )
    return [
        Request(options, lora_request=adapter, priority=rank, place=place, may_be_empty=empty)
        for place, (options, rank, adapter, empty) in enumerate(zip(*columns, strict=True))
    ]


def _spread(name: str, value: Any, count: int) -> list[Any]:
    """Return ``value`` as a list of ``count`` values. A value that is not a list is repeated."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise OptionError(f"{count} inputs and {len(value)} {name}; give one for all, or one for each input")
    return list(value)
