"""Work: one request of a client, on its way through the engine to its results as bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar

from vllm_mmout.engine.threads import entered, in_thread
from vllm_mmout.errors import InputError
from vllm_mmout.processors.base import formats_for
from vllm_mmout.serving.errors import api_error
from vllm_mmout.serving.metrics import count_refusal
from vllm_mmout.serving.request.asked_limits import check_asked
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.response.encode import FormatChoice, chosen_format, encode, response_of
from vllm_mmout.serving.response.responses import close_entries
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.written import check_path

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.outputs.partial_images import PreviewRequest
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.response.encode import ToResponse
    from vllm_mmout.serving.service import ForwardService

Field: TypeAlias = Literal["image", "data", "prompt", "input"]
"""The field of a request that holds its input: files, any JSON, or a text."""
TEXTS: Final = ("prompt", "input")
"""Fields that hold a text."""


class _Closable(Protocol):
    def close(self) -> None: ...


Made = TypeVar("Made", bound=_Closable)


@dataclass(frozen=True, slots=True)
class Work:
    """One request of a client, ready to be run."""

    service: ForwardService
    data: Any
    """What the field of the input held."""
    params: OutputParams
    asked: FormatChoice
    request_id: str
    adapter: LoRARequest | None = None
    field: Field = "image"
    """Where the input stood."""
    priority: int = 0
    """The lower the earlier."""
    trace_headers: Mapping[str, str] | None = None
    """The client's span, below which that of the request lies."""

    budget: AnswerBudget | None = None
    """Budget that several requests of one answer share, or None if the request is an answer of its own."""
    checked: bool = False
    """Whether `check` has been called."""

    @property
    def names(self) -> tuple[str, ...]:
        """The processors whose results are wanted."""
        return self.service.binding.choice.pick(self.params.processor)

    @property
    def named(self) -> tuple[str, ...]:
        """The same where several were asked for, each result saying which is its own; else none."""
        return self.names if isinstance(self.params.processor, tuple) else ()

    def check(self) -> Work:
        """Return the request as one that was checked; refuse what its results cannot be, as far as that is known."""
        self.service.binding.check_params(self.params)
        self._check_limits()
        for name in self.names:
            formats = formats_for(self.service.binding.processors[name], self.params)
            if formats is not None:
                chosen_format(formats, self.asked)
        return replace(self, checked=True)

    def _check_limits(self) -> None:
        """Refuse a path that the server does not allow, and more pixels, steps or seconds than its limits."""
        check_path(self)
        binding = self.service.binding
        fields = () if binding.inputs is None else binding.inputs.fields
        fps = getattr(binding.processors[self.names[0]], "fps", None)
        check_asked(self.params, self.data, fields, fps, self.service.options)

    async def running(self, watch: PreviewRequest | None = None) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run it, its files open meanwhile; what `AsyncLLM.generate` yields, with pictures where it is watched."""
        service = self.service
        self._check_limits()  # callers need not have called `check`
        try:
            async with entered(service.opened(self.data, self.params, self.field)) as opened:
                outputs = service.engine.generate(
                    opened,
                    self.params,
                    self.request_id,
                    lora_request=self.adapter,
                    trace_headers=self.trace_headers,
                    priority=self.priority,
                    max_tiles=service.options.max_tiles,
                    max_area=service.options.max_area,
                    watch=watch,
                    folder=service.store.shared.work,
                    warn=False,  # the answer says it
                    checked=self.checked,
                )
                async with aclosing(outputs):
                    async for output in outputs:
                        yield output
        except Exception as error:
            count_refusal(service.observer, error)
            if isinstance(error, InputError) and error.param is None:
                error.param = self.field
            raise api_error(error, self.request_id) from error

    async def last(self) -> MultimodalRequestOutput:
        """Run it to its end."""
        async with aclosing(self.running()) as outputs:
            async for output in outputs:
                last = output
        return last

    async def result(self) -> Results:
        """Run it to its end; its results as bytes."""
        return await self.encoded(await self.last())

    def made(self, outputs: Any, make: Callable[[Any, ToResponse | None], Made]) -> dict[str, Made]:
        """What is made of each output, and of its `response_of`, by processor; blocks.

        The outputs are closed, and what was made if one fails.
        """
        by_name: Mapping[str, Any] = outputs if self.named else {self.names[0]: outputs}
        with ExitStack() as used, ExitStack() as unfinished:
            for output in by_name.values():
                if hasattr(output, "close"):
                    used.callback(output.close)
            results: dict[str, Made] = {}
            for name, output in by_name.items():
                results[name] = make(output, response_of(self.service.binding.processors[name], self.params))
                unfinished.callback(results[name].close)
            unfinished.pop_all()
            return results

    def new_budget(self) -> AnswerBudget:
        """Return the budget of one answer."""
        return AnswerBudget(self.service.options.max_answer)

    async def encoded(self, output: MultimodalRequestOutput) -> Results:
        """Its results as the bytes that were asked for, made off the event loop."""
        folder, budget = self.service.store.shared.work, self.budget or self.new_budget()

        def entries() -> list[Encoded]:
            made = self.made(output.outputs, lambda one, respond: encode(one, self.asked, respond, folder, budget))
            return list(made.values())

        try:
            tiles = output.progress.total if output.progress else 1
            return Results(await in_thread(entries, close_entries, budget.abandon), tiles, output.assumed)
        except Exception as error:
            raise api_error(error, self.request_id) from error


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a request, to be sent."""

    entries: list[Encoded]
    """One a processor; whoever sends them closes them."""
    tiles: int
    """Forwards of the model that they took."""
    assumed: tuple[str, ...] = ()
    """What was assumed about the input, in sentences."""
