"""From what a client asked for to its answer: the request is run, and its results become JSON, bytes or events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    from vllm_mmout.params import OutputParams
    from vllm_mmout.serving.events import Event
    from vllm_mmout.serving.service import Field, Service

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

    def running(self) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run it; what `AsyncLLM.generate` yields."""
        return self.service.results(self.data, self.params, self.request_id, self.adapter, self.field)

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
            encoding.add_done_callback(_close)
            raise
        return Results(entries, 1 if output.progress is None else output.progress.total)

    def _encoded(self, outputs: Any) -> list[Encoded]:
        by_name: Mapping[str, Any] = outputs if self.named else {self.names[0]: outputs}
        with ExitStack() as used, ExitStack() as made:
            for output in by_name.values():
                if hasattr(output, "close"):
                    used.callback(output.close)
            entries = []
            for name, output in by_name.items():
                respond = response_of(self.service.binding.processors[name], self.params)
                entries.append(encode(output, self.asked, respond))
                made.callback(entries[-1].close)
            made.pop_all()  # whoever sends them closes them
            return entries


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
    names = await asyncio.to_thread(lambda: [work.service.store.keep(entry) for entry in results.entries])
    urls = [str(request.url_for("mmout_result", name=name)) for name in names]
    return json_response(results.entries, tiles=results.tiles, processors=work.named, urls=urls)


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


def _close(encoding: asyncio.Future[list[Encoded]]) -> None:
    if not encoding.cancelled() and encoding.exception() is None:
        for entry in encoding.result():
            entry.close()
