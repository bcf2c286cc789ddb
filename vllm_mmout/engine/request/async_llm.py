"""Asynchronous engine whose ``generate`` yields images, rasters or other decoded objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import uuid4

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from vllm_mmout.engine.hooks.client_errors import as_client_error
from vllm_mmout.engine.mosaic.async_mosaic import AsyncMosaic
from vllm_mmout.engine.mosaic.mosaic import as_mosaic
from vllm_mmout.engine.mosaic.plan import Limits, MosaicPlan
from vllm_mmout.engine.mosaic.run import MosaicRun
from vllm_mmout.engine.observer import counted
from vllm_mmout.engine.request.input_reading import prepare
from vllm_mmout.engine.request.request import Request, carrying
from vllm_mmout.engine.request.spans import AddAttributes, request_span
from vllm_mmout.engine.request_output import MultimodalRequestOutput, warn_assumed
from vllm_mmout.engine.scene.async_runs import AsyncRun, AsyncRuns
from vllm_mmout.engine.scene.run import Run
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import MMOutError
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.mosaic.async_mosaic import Generate
    from vllm_mmout.engine.request.output_router import RoutedOutputProcessor
    from vllm_mmout.outputs.partial_images import PreviewRequest

Results: TypeAlias = AsyncGenerator[MultimodalRequestOutput, None]
"""Asynchronous generator that yields the progress reports of a request, and the result at the end."""


class BoundAsyncLLM(AsyncLLM):
    """vLLM's ``AsyncLLM`` for a model with output processors. Its ``generate`` yields decoded objects."""

    output_processor: RoutedOutputProcessor
    mmout: AsyncRuns

    def mmout_bound(self) -> None:
        """Create ``self.mmout``, the state of all requests. Called once, after an ``AsyncLLM`` became this class."""
        self.mmout = AsyncRuns(self.output_processor.binding)

    @counted
    async def generate(  # type: ignore[override]  # the result of a bound engine is no text
        self,
        prompt: Any,
        sampling_params: OutputParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        max_tiles: int | None = None,
        max_area: float | None = None,
        max_pixels: int | None = None,
        watch: PreviewRequest | None = None,
        folder: Path | None = None,
        warn: bool = True,
        checked: bool = False,
    ) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run the model on an input and decode its output. Closing or cancelling the generator aborts the request.

        Args:
            prompt: the input, in any form that ``LLM.generate`` takes.
            sampling_params: options of the request.
            request_id: name of the request, for ``abort``. It is random by default.
            lora_request: LoRA adapter.
            trace_headers: ``traceparent`` and ``tracestate`` of the caller, if vLLM traces.
            priority: priority of the request; lower values run earlier (with the priority scheduling policy).
            max_tiles: largest number of tiles that the input may be cut into, or None for no limit.
            max_area: largest area that the input may cover, in square kilometres, or None for no limit. With ``window``
                or ``bbox`` only that part counts. An unknown area is accepted.
            max_pixels: largest number of pixels of the map that a mosaic makes, or None for the default.
            watch: requests pictures of the growing result on demand, or None. The pictures are reported like those of
                ``partial_images``. A mosaic has no pictures of its growing result.
            folder: folder for a result on disk without ``path``, or None for the system's temporary folder.
            warn: whether to issue an `AssumedWarning` for each sentence of the result's ``assumed``.
            checked: whether the caller has already checked the params with `Binding.check_params`.

        Yields:
            The finished result. An input that is cut into tiles yields progress reports before it. Their ``finished``
            is False, and their ``progress`` has the number of finished tiles. If ``partial_images`` or ``watch`` asks
            for pictures, the ``outputs`` of some reports is a picture of the growing result.

        Raises:
            MMOutError: the input or the params are refused, or the request failed.

        """
        params = OutputParams() if sampling_params is None else sampling_params
        request_id = request_id or uuid4().hex

        def request(own: OutputParams, name: str, *, may_be_empty: bool = False) -> Request:
            return Request(own, name, lora_request, trace_headers, priority, may_be_empty=may_be_empty)

        def scene(data: Any, own: OutputParams, name: str) -> Results:
            return self._mmout_one(request(own, name, may_be_empty=True), data, max_area=max_area)

        if (mosaic := as_mosaic(prompt, params)) is None:
            results = self._mmout_one(
                request(params, request_id),
                prompt,
                watch=watch,
                folder=folder,
                max_tiles=max_tiles,
                max_area=max_area,
                checked=checked,
            )
        else:
            limits = Limits(max_tiles, max_area, max_pixels)
            planning = partial(MosaicPlan.of, self.output_processor.binding, *mosaic, limits)
            results = self._mmout_mosaic(planning, request_id, scene, folder)
        async with aclosing(results):
            async for result in results:
                if warn and result.finished:
                    warn_assumed([result], stacklevel=4)
                yield result

    async def _mmout_one(
        self,
        request: Request,
        prompt: Any,
        *,
        watch: PreviewRequest | None = None,
        folder: Path | None = None,
        max_tiles: int | None = None,
        max_area: float | None = None,
        checked: bool = False,
    ) -> Results:
        """Run a request with one input, and yield its progress reports and then its result."""
        self.mmout.backlog.observer = self.output_processor.observer
        async with AsyncExitStack() as held:
            add_attributes = held.enter_context(request_span(self.output_processor, request))
            held.enter_context(self.mmout.backlog.holding(request))
            release_blocks = held.enter_context(self.mmout.small_inputs.holding_blocks())
            async with self.mmout.readers:  # also limits the inputs that wait for a credit
                prepared = await self._mmout_prepare(request, prompt, max_tiles, max_area, checked=checked)
                if isinstance(prepared, Request):
                    self.mmout.small_inputs.arrived()
                    await held.enter_async_context(self.mmout.credits.held(prepared.nbytes))
            if isinstance(prepared, Run):
                release_blocks()
                held.callback(prepared.close)
                prepared.folder = prepared.folder or folder
                run_results = self._mmout_run(prepared, watch, add_attributes)
                await held.enter_async_context(aclosing(run_results))
                async for result in run_results:
                    yield result
                return
            results = self._mmout_results(request, when_sent=release_blocks)
            await held.enter_async_context(aclosing(results))
            async for result in results:
                request.done = int(result.finished and result.error is None)
                if result.error is not None:
                    raise result.error
                if not result.finished:
                    yield result
        yield result

    async def _mmout_mosaic(
        self, make_plan: Callable[[], MosaicPlan], request_id: str, run_scene: Generate, folder: Path | None
    ) -> Results:
        """Plan a mosaic, run its scenes, and yield progress reports and then the joined result."""
        try:
            run = await in_thread(lambda: MosaicRun(make_plan(), folder), MosaicRun.close)
        except MMOutError as error:
            raise as_client_error(error) from error.__cause__
        driven = self.mmout.mosaics[request_id] = AsyncMosaic(run, request_id, run_scene)
        try:
            async with aclosing(driven.results()) as results:
                async for result in results:
                    yield result
        finally:
            self.mmout.mosaics.pop(request_id, None)
            await asyncio.shield(asyncio.to_thread(run.close))

    async def _mmout_send(self, request: Request) -> MultimodalRequestOutput:
        """Run a request with a single output, and return the output. Cancelling the call aborts the request."""
        async with aclosing(self._mmout_results(request)) as results:
            return await anext(results)

    async def _mmout_results(
        self, request: Request, when_sent: Callable[[], None] | None = None
    ) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run a request. Yield its progress reports and then its result. Closing the generator aborts the request.

        A slow consumer gets every report. ``when_sent`` is called when the request was sent to its engine.
        """
        pooling = request.pooling_params(self.model_config.get_pooling_task(await self.get_supported_tasks()))
        try:
            with carrying(request):
                queue = await self.add_request(
                    request.request_id,
                    request.prompt,
                    pooling,
                    lora_request=request.lora_request,
                    trace_headers=request.trace_headers,
                    priority=request.priority,
                    data_parallel_rank=request.engine,
                )
            request.prompt = None
            if when_sent is not None:
                when_sent()
            finished = False
            while not finished:
                output = cast("MultimodalRequestOutput", await queue.get())
                while request.reports:
                    yield request.reports.popleft()
                finished = output.finished
            request.internal_id = None  # the engine has ended the request, which needs no abort
            yield output
        except BaseException as error:
            if request.internal_id is not None:
                if isinstance(error, EngineDeadError):  # the engine cannot abort it, but the frontend can
                    self.output_processor.abort_requests([request.internal_id], internal=True)
                else:
                    await self.abort(request.internal_id, internal=True)
            raise
        finally:
            request.release()

    async def _mmout_run(
        self, run: Run, preview_request: PreviewRequest | None, add_attributes: AddAttributes
    ) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run a request that is split into parts, such as tiles. Yield progress reports and then the result."""
        router = self.output_processor
        limit_s = router.binding.settings.decode_timeout_s
        run.request.total = 0  # the backlog counts the tiles of the run from now on
        add_attributes(pixels=run.pixels)
        run.attach(self.mmout.budget, self.mmout.wake, limit_s=limit_s, observer=router.observer, watch=preview_request)
        self.mmout.driven[run] = driven = AsyncRun(self.mmout, run, self._mmout_send)
        try:
            with self.mmout.backlog.holding(run):
                async with aclosing(driven.results()) as results:
                    async for result in results:
                        if result.finished and result.progress is not None:
                            add_attributes(tiles=result.progress.total)
                        yield result
        finally:
            driven.when_done(lambda: self.mmout.driven.pop(run, None))

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:  # noqa: FBT001, FBT002 - as vLLM's
        """Abort requests by id. A scene is aborted with all its tiles."""
        request_ids = [request_id] if isinstance(request_id, str) else list(request_id)
        if not internal:
            for name in request_ids:
                if (mosaic := self.mmout.mosaics.get(name)) is not None:
                    mosaic.abort()
            for driven in [*self.mmout.driven.values()]:
                if driven.run.request.request_id in request_ids:
                    driven.abort()
        await super().abort(request_ids, internal)

    async def _mmout_prepare(
        self, request: Request, prompt: Any, max_tiles: int | None, max_area: float | None, *, checked: bool
    ) -> Request | Run:
        """Check the options of a request. Then read or open its input in a thread. Return the prepared request.

        A request that is cut into tiles becomes a `Run`. If ``checked`` is True, the options are not checked again.
        """
        binding = self.output_processor.binding
        try:
            if not checked:
                binding.check_params(request.params)
            reading = partial(prepare, binding, prompt, request, max_area=max_area)
            prepared = await in_thread(reading, _close)
            if max_tiles is not None and isinstance(prepared, Run):
                prepared.check_tiles(max_tiles)
        except MMOutError as error:
            raise as_client_error(error) from error.__cause__
        return prepared

    def shutdown(self, timeout: float | None = None) -> None:
        """Shut the engine down. Pending decodes fail with an AbortedError. A second call does nothing."""
        if not self.mmout.shut_down:
            self.mmout.shut_down = True
            for driven in [*self.mmout.driven.values()]:
                driven.abort()
            self.output_processor.close()
            super().shutdown(timeout)


def _close(prepared: Request | Run) -> None:
    """Close the input of a scene whose caller was cancelled while the input was opened."""
    if isinstance(prepared, Run):
        prepared.close()
