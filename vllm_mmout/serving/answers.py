"""From what a client asked for to its answer: the request is run, and its results become JSON, bytes or events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar
from uuid import uuid4

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.response import events
from vllm_mmout.serving.response.encode import FormatChoice, accepted, chosen_format, encode, response_of
from vllm_mmout.serving.response.events import EventsResponse
from vllm_mmout.serving.response.responses import bare_response, close_entries, json_response, unless_gone
from vllm_mmout.serving.response.result_files import Encoded

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.outputs.partial_images import PreviewRequest
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.request.fields import ImageRequest
    from vllm_mmout.serving.response.encode import ToResponse
    from vllm_mmout.serving.response.events import Event
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.serving.service import Field, ForwardService


class _Closable(Protocol):
    def close(self) -> None: ...


Made = TypeVar("Made", bound=_Closable)
Kind: TypeAlias = Literal["image_edit", "image_generation"]

_QUIET_S = 5.0
"""Seconds after which a stream says that it goes on."""


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

    @property
    def names(self) -> tuple[str, ...]:
        """The processors whose results are wanted."""
        return self.service.binding.choice.pick(self.params.processor)

    @property
    def named(self) -> tuple[str, ...]:
        """The same where several were asked for, each result saying which is its own; else none."""
        return self.names if isinstance(self.params.processor, tuple) else ()

    def check(self) -> None:
        """Refuse what the results cannot be before the model runs, where that is known."""
        self.service.binding.check_params(self.params)
        for name in self.names:
            formats = self.service.binding.processors[name].formats(self.params)
            if formats is not None:
                chosen_format(formats, self.asked)

    async def result(self) -> Results:
        """Run it to its end."""
        async with aclosing(self.running()) as outputs:
            async for output in outputs:
                last = output
        return await self.encoded(last)

    def running(self, watch: PreviewRequest | None = None) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run it; what `AsyncLLM.generate` yields."""
        return self.service.results(
            self.data, self.params, self.request_id, self.adapter, self.field, watch=watch, priority=self.priority
        )

    def made(self, outputs: Any, make: Callable[[Any, ToResponse | None], Made]) -> dict[str, Made]:
        """What is made of each output, by processor; blocks. The outputs are closed, and what was made if one fails."""
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

    async def encoded(self, output: MultimodalRequestOutput) -> Results:
        """Its results as the bytes that were asked for, made off the event loop."""
        try:
            entries = await in_thread(lambda: self._encoded(output.outputs), close_entries)
        except Exception as error:
            raise api_error(error, self.request_id) from error
        return Results(entries, 1 if output.progress is None else output.progress.total)

    def _encoded(self, outputs: Any) -> list[Encoded]:
        """The bytes, which whoever sends them closes."""
        folder = self.service.store.shared.work
        return list(self.made(outputs, lambda output, respond: encode(output, self.asked, respond, folder)).values())


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a request, to be sent."""

    entries: list[Encoded]
    """One a processor; whoever sends them closes them."""
    tiles: int
    """Forwards of the model that they took."""


async def answered_images(
    request: Request, service: ForwardService, asked: ImageRequest, data: Any, kind: Kind
) -> Response:
    """Run a request of OpenAI's image interface, checked as a whole before, and answer as it asks."""
    form = FormatChoice(
        asked.output_format, asked.output_compression, asked.background, accepted(request.headers.get("accept"))
    )
    stored = asked.response_format == "url"
    check_bare(form, asked.options, stored=stored, streamed=asked.stream)
    name = request_id(request, "image")
    field: Field = "prompt" if kind == "image_generation" else "image"
    work = Work(service, data, asked.options, form, name, service.adapter(asked.model), field)
    work.check()
    if asked.stream:
        return EventsResponse(stream(work, kind), name)
    return await unless_gone(request, answer(work, request, stored=stored))


async def answer(work: Work, request: Request, *, stored: bool) -> Response:
    """Run a request and answer with its results."""
    results = await work.result()
    if work.asked.accept is not None:
        return bare_response(results.entries[0])
    if not stored:
        return json_response(results.entries, tiles=results.tiles, processors=work.named)
    names = await kept(work.service.store, results.entries)
    urls = [str(request.url_for("mmout_result", name=name)) for name in names]
    return json_response(results.entries, tiles=results.tiles, processors=work.named, urls=urls)


async def kept(store: ResultStore, entries: list[Encoded]) -> list[str]:
    """Store results off the event loop; of a client that goes away meanwhile nothing is left."""
    return await in_thread(lambda: _keep(store, entries), partial(_remove, store))


def _keep(store: ResultStore, entries: list[Encoded]) -> list[str]:
    """Store all results, or none; blocks. All are closed."""
    with ExitStack() as closing, ExitStack() as unfinished:
        for entry in entries:
            closing.callback(entry.close)
        names = []
        for entry in entries:
            names.append(store.keep(entry))
            unfinished.callback(store.remove, names[-1])
        unfinished.pop_all()
        return names


def _remove(store: ResultStore, names: Iterable[str]) -> None:
    for name in names:
        store.remove(name)


def check_bare(asked: FormatChoice, params: OutputParams, *, stored: bool, streamed: bool) -> None:
    """Refuse the header ``Accept`` of a media type where the answer is more than the bytes of one result."""
    several = isinstance(params.processor, tuple) and len(params.processor) > 1
    for wrong, param in ((several, "processor"), (stored, "response_format"), (streamed, "stream")):
        if asked.accept is not None and wrong:
            raise ApiError(400, f"{param} needs an answer in JSON; leave out Accept, or {param}", param=param)


async def stream(work: Work, kind: Kind) -> AsyncGenerator[Event | None, None]:
    """Run a request; previews while its result grows, then the results."""
    last, said = None, 0.0
    async with aclosing(work.running()) as outputs:
        async for output in outputs:
            last = output
            progress = None if output.finished else output.progress
            if progress is not None and progress.partial_index is not None:
                preview = await asyncio.to_thread(encode, output.outputs, work.asked.for_preview)
                yield events.partial_image(kind, progress.partial_index, preview)
            elif progress is not None and time.monotonic() - said > _QUIET_S:
                said = time.monotonic()
                yield None
    if last is None:
        return
    results = await work.encoded(last)
    for name, entry in zip(work.names, results.entries, strict=True):
        yield events.completed(kind, entry, tiles=results.tiles, processor=name if work.named else None)


def request_id(request: Request, kind: str) -> str:
    """A name for a request: what the client calls it, and what no other request is called."""
    given = "".join(sign for sign in request.headers.get("x-request-id", "")[:64] if sign.isalnum() or sign in "-_")
    return "-".join(part for part in (kind, given, uuid4().hex) if part)
