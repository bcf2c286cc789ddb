"""A client's checked request, with methods that run it on the engine and encode its results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgspec

from vllm_mmout.engine.request.results import AskedResult, ResultKey, asked_results, check_suffix_of
from vllm_mmout.engine.threads import entered, in_thread
from vllm_mmout.errors import InputError, OptionError, SaveError
from vllm_mmout.geo import FileAddress, in_bucket, place_of
from vllm_mmout.outputs import RasterSeries
from vllm_mmout.serving.errors import client_errors
from vllm_mmout.serving.inputs.prefixes import Prefixes
from vllm_mmout.serving.metrics import count_refusal
from vllm_mmout.serving.options import flag
from vllm_mmout.serving.request.asked_limits import check_request
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.encode import encode, response_of
from vllm_mmout.serving.response.format_choice import FormatChoice, agreed, chosen_format
from vllm_mmout.serving.response.responses import close_entries
from vllm_mmout.serving.response.result_files import Encoded

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.outputs.partial_images import PreviewRequest
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.serving.response.encode import ToResponse
    from vllm_mmout.serving.service import Field, ForwardService


class _Closable(Protocol):
    def close(self) -> None: ...


Made = TypeVar("Made", bound=_Closable)


@dataclass(frozen=True, slots=True)
class Work:
    """A client's checked request, with methods that run it on the engine and encode its results."""

    service: ForwardService
    request: ImageRequest
    data: Any
    """Model input from the request field named by ``field``."""
    request_id: str
    adapter: LoRARequest | None = None
    field: Field = "image"
    """Name of the request field that held the input."""
    priority: int = 0
    """Priority in the engine's queue. A lower number runs earlier."""
    trace_headers: Mapping[str, str] | None = None
    """OpenTelemetry headers of the client's request."""
    budget: AnswerBudget | None = None
    """Memory limit that several requests of one response share, or None to create a limit for this request."""
    checked: bool = False
    """Whether the request's options were already checked, so that the engine need not check them again."""

    @classmethod
    def of(
        cls,
        service: ForwardService,
        request: ImageRequest,
        data: Any,
        request_id: str,
        field: Field = "image",
        *,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Create a `Work`, after checking the request's options, limits and file formats."""
        adapter = service.adapter(request.model)
        work = cls(service, request, data, request_id, adapter, field, trace_headers=trace_headers, checked=True)
        service.binding.check_params(work.params)
        work.check_limits()
        if work.makes_series and isinstance(work.params.output, tuple):
            raise OptionError(
                f"output_format is {agreed(request)}, one store of the maps of all days, and output is"
                f" {', '.join(work.params.output)}; ask for one kind of output, or leave output_format out",
                param="output_format",
            )
        for result in work.results:
            formats = result.formats
            if formats is not None:
                chosen_format(formats, work.format_of(result))
        return work

    @property
    def params(self) -> OutputParams:
        """Return the request's options for the engine."""
        return self.request.options

    @property
    def results(self) -> tuple[AskedResult, ...]:
        """Return the results that the client asked for."""
        return asked_results(self.service.binding, self.params)

    @property
    def makes_series(self) -> bool:
        """Return whether the maps of all days become one file with a time axis, such as a Zarr store."""
        return self.params.each_day and agreed(self.request) in RasterSeries.formats.values()

    def labels(self, outputs: Any) -> list[dict[str, str]]:
        """Return a label for each result, such as {"output": "areas"}. Return [] for a single result.

        The fields of a label are ``processor``, or ``output`` if the client asked for several kinds of output, and
        ``day`` if it asked for a map of each day. ``outputs`` holds the outputs of the finished request.
        """
        if self.makes_series:
            return []
        field = "output" if isinstance(self.params.output, tuple) else "processor"
        labels = [
            {**({field: name} if self.params.named else {}), **({} if day is None else {"day": day})}
            for name, day in self._by_key(outputs)
        ]
        return [label for label in labels if label]

    def format_of(self, result: AskedResult) -> FormatChoice:
        """Return the file format that the client requests for a result.

        Of several kinds of output, those that the format cannot hold get their usual one. OptionError is raised if no
        kind can have it.
        """
        asked = agreed(self.request)
        if not result.is_kind or asked is None:
            return self.request
        having = [each.name for each in self.results if asked in (each.formats or {}).values()]
        if not having or result.name in having:
            return self.request
        return msgspec.structs.replace(self.request, output_format=None, accept=None, output_compression=None)

    def check_limits(self) -> None:
        """Check the result's path, and the requested size, steps and seconds, against the server's limits."""
        _check_path(self)
        check_request(self.service.binding, self.params, self.data, self.service.options)

    async def running(self, watch: PreviewRequest | None = None) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Open the input, run the request, and yield the engine's outputs. The flag ``watch`` requests previews."""
        service = self.service
        with client_errors(self.request_id):
            try:
                data = [self.data] if self.params.mosaic and not isinstance(self.data, list) else self.data
                async with entered(service.opened(data, self.params, self.field)) as opened:
                    outputs = service.engine.generate(
                        opened,
                        self.params,
                        self.request_id,
                        lora_request=self.adapter,
                        trace_headers=self.trace_headers,
                        priority=self.priority,
                        max_tiles=service.options.max_tiles,
                        max_area=service.options.max_area,
                        max_pixels=service.options.max_pixels,
                        watch=watch,
                        folder=service.store.shared.work,
                        warn=False,  # the answer holds the warnings
                        checked=self.checked,
                    )
                    async with aclosing(outputs):
                        async for output in outputs:
                            yield output
            except Exception as error:
                count_refusal(service.observer, error)
                if isinstance(error, InputError) and error.param is None:
                    error.param = self.field
                raise

    async def last(self) -> MultimodalRequestOutput:
        """Run the request, and return its final output."""
        async with aclosing(self.running()) as outputs:
            async for output in outputs:
                last = output
        return last

    def made(self, outputs: Any, make: Callable[[Any, FormatChoice, ToResponse | None], Made]) -> dict[ResultKey, Made]:
        """Call ``make(output, format, to_response)`` for each output of the request. Return a dict of the results.

        The dict maps (name of the result, day) to the value that ``make`` returned. The request must be finished. The
        response function, or None, comes from `response_of`. The outputs are closed. If ``make`` raises, its earlier
        results are closed too. The call blocks while ``make`` runs.
        """
        asked = {result.name: result for result in self.results}
        by_key = self._by_key(outputs)
        with ExitStack() as used, ExitStack() as unfinished:
            for output in by_key.values():
                if hasattr(output, "close"):
                    used.callback(output.close)
            if self.makes_series:
                days = {day or "": output for (_, day), output in by_key.items()}
                by_key = {(next(iter(asked)), None): RasterSeries(days)}
            results: dict[ResultKey, Made] = {}
            for key, output in by_key.items():
                result = asked[key[0]]
                respond = response_of(result.processor, result.params)
                results[key] = make(output, self.format_of(result), respond)
                unfinished.callback(results[key].close)
            unfinished.pop_all()
            return results

    def _by_key(self, outputs: Any) -> dict[ResultKey, Any]:
        """Return the finished request's outputs, keyed by (name of the result, day). Earlier days come first.

        The day is None unless the client asked for a map of each day.
        """
        names = [result.name for result in self.results]
        by_day: Mapping[str | None, Any] = outputs if self.params.each_day else {None: outputs}
        return {
            (name, day): output
            for day, of_day in by_day.items()
            for name, output in (of_day if self.params.named else dict.fromkeys(names, of_day)).items()
        }

    def new_budget(self) -> AnswerBudget:
        """Create the memory limit of one response."""
        return AnswerBudget(self.service.options.max_answer)

    async def encoded(self, output: MultimodalRequestOutput) -> list[Encoded]:
        """Encode the results of a finished request in a thread, and return them. The caller must close each result."""
        folder, budget = self.service.store.shared.work, self.budget or self.new_budget()

        def entries() -> list[Encoded]:
            made = self.made(output.outputs, lambda one, form, respond: encode(one, form, respond, folder, budget))
            return list(made.values())

        with client_errors(self.request_id):
            return await in_thread(entries, close_entries, budget.abandon)


def tiles_of(output: MultimodalRequestOutput) -> int:
    """Return the number of tiles that the input of a finished request was cut into, or 1 if it was not cut.

    The number includes tiles without valid pixels, on which the model was not run. For a mosaic, the tiles of all
    scenes are added up.
    """
    return output.progress.total if output.progress else 1


def _check_path(work: Work) -> None:
    """Raise OptionError if the result's path is not allowed, overwrites the input, or has an unknown suffix."""
    path = work.params.path
    if path is None:
        return
    writes = Prefixes.of(work.service.options.write_to, flag("write_to"))
    try:
        allowed = in_bucket(path) and writes.allows(path)
    except InputError as error:
        raise OptionError(str(error), param="path") from None
    if not allowed:
        raise OptionError(
            f"path is no file below an address where this server writes ({flag('write_to')}); choose another, or save"
            " the answer, and leave it out",
            param="path",
        )
    inputs = work.data if isinstance(work.data, list) else [work.data]
    if any(in_bucket(source) and FileAddress.of(source).name == FileAddress.of(path).name for source in inputs):
        raise OptionError("the result would be written over its own input; choose another path", param="path")
    try:
        check_suffix_of(work.results, place_of(path))
    except SaveError as error:
        error.param = "path"
        raise
