"""From what a client asked for to its answer: the request is run, and its results become JSON, bytes or events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vllm_mmout.serving import events
from vllm_mmout.serving.encode import Asked, chosen_format, encode, response_of
from vllm_mmout.serving.encoded import Encoded
from vllm_mmout.serving.errors import ApiError, api_error
from vllm_mmout.serving.responses import bare_response, json_response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.request_output import MultimodalRequestOutput
    from vllm_mmout.outputs.watch import Watch
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.encode import ToResponse
    from vllm_mmout.serving.events import Event
    from vllm_mmout.serving.service import Field, Service
    from vllm_mmout.serving.store import ResultStore


class _Closable(Protocol):
    def close(self) -> None: ...


Made = TypeVar("Made", bound=_Closable)

_QUIET_S = 5.0
"""Seconds after which a stream says that it goes on."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request of a client, ready to be run."""

    service: Service
    data: Any
    """What the field of the input held."""
    params: OutputParams
    asked: Asked
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
        """Refuse what the results cannot be before the model runs, where that is known.

        Raises:
            OptionError: a processor is unknown, or its results cannot be what was asked for.

        """
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

    def running(self, watch: Watch | None = None) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run it; what `AsyncLLM.generate` yields.

        Args:
            watch: asks for pictures of the growing result.

        """
        return self.service.results(
            self.data, self.params, self.request_id, self.adapter, self.field, watch=watch, priority=self.priority
        )

    def made(self, outputs: Any, make: Callable[[Any, ToResponse | None], Made]) -> dict[str, Made]:
        """What is made of each output, by processor; blocks. The outputs are closed, and what was made if one fails.

        Args:
            outputs: what the engine gave.
            make: takes an output, and what `response_of` gives of its processor.

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

    async def encoded(self, output: MultimodalRequestOutput) -> Results:
        """Its results as the bytes that were asked for, made off the event loop.

        Raises:
            ApiError: they cannot be made.

        """
        encoding = asyncio.ensure_future(asyncio.to_thread(self._encoded, output.outputs))
        try:
            entries = await asyncio.shield(encoding)
        except Exception as error:
            raise api_error(error, self.request_id) from error
        except asyncio.CancelledError:  # the thread goes on, and nobody wants what it makes
            encoding.add_done_callback(close_made)
            raise
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


async def answer(work: Work, request: Request, *, stored: bool) -> Response:
    """Run a request and answer with its results.

    Args:
        work: the request.
        request: the client's.
        stored: whether the results are to be stored, and the answer to say where.

    """
    results = await work.result()
    if work.asked.accept is not None:
        return bare_response(results.entries[0])
    if not stored:
        return json_response(results.entries, tiles=results.tiles, processors=work.named)
    names = await kept(work.service.store, results.entries)
    urls = [str(request.url_for("mmout_result", name=name)) for name in names]
    return json_response(results.entries, tiles=results.tiles, processors=work.named, urls=urls)


async def kept(store: ResultStore, entries: list[Encoded]) -> list[str]:
    """Store results off the event loop; of a client that goes away meanwhile nothing is left.

    Args:
        store: where to.
        entries: all are closed.

    Returns:
        The names by which they can be fetched.

    """
    keeping = asyncio.ensure_future(asyncio.to_thread(_keep, store, entries))
    try:
        return await asyncio.shield(keeping)
    except asyncio.CancelledError:  # the thread goes on, and nobody will know the names
        keeping.add_done_callback(lambda kept: _remove(store, kept))
        raise


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


def _remove(store: ResultStore, kept: asyncio.Future[list[str]]) -> None:
    if not kept.cancelled() and kept.exception() is None:
        for name in kept.result():
            asyncio.get_running_loop().run_in_executor(None, store.remove, name)


def check_bare(asked: Asked, params: OutputParams, *, stored: bool, streamed: bool) -> None:
    """Refuse the header ``Accept`` of a media type where the answer is more than the bytes of one result.

    Raises:
        ApiError: it is.

    """
    several = isinstance(params.processor, tuple) and len(params.processor) > 1
    for wrong, param in ((several, "processor"), (stored, "response_format"), (streamed, "stream")):
        if asked.accept is not None and wrong:
            raise ApiError(400, f"{param} needs an answer in JSON; leave out Accept, or {param}", param=param)


async def stream(work: Work, kind: str) -> AsyncGenerator[Event | None, None]:
    """Run a request; previews while its result grows, then the results.

    Args:
        work: the request; its params say how many previews there are to be.
        kind: "image_edit" or "image_generation".

    """
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


def close_made(encoding: asyncio.Future[list[Encoded]]) -> None:
    """Let results go that nobody waits for any more."""
    if not encoding.cancelled() and encoding.exception() is None:
        for entry in encoding.result():
            entry.close()
