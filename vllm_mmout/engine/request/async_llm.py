"""``AsyncLLM`` on a bound engine: ``generate`` yields the decoded object."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from vllm_mmout.engine.hooks.client_errors import as_client_error
from vllm_mmout.engine.observer import counted
from vllm_mmout.engine.request.reading import prepare
from vllm_mmout.engine.request.request import Request, carrying
from vllm_mmout.engine.request.spans import request_span
from vllm_mmout.engine.request_output import MultimodalRequestOutput, warn_assumed
from vllm_mmout.engine.scene.async_runs import AsyncRun, AsyncRuns
from vllm_mmout.engine.scene.run import Run
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import MMOutError
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    from vllm_mmout.engine.request.output_router import RoutedOutputProcessor
    from vllm_mmout.outputs.partial_images import PreviewRequest


class BoundAsyncLLM(AsyncLLM):
    """vLLM's asynchronous engine whose outputs are decoded."""

    output_processor: RoutedOutputProcessor
    mmout: AsyncRuns

    def mmout_bound(self) -> None:
        """Set up the state of the engine; called once, when it is bound."""
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
        watch: PreviewRequest | None = None,
        folder: Path | None = None,
        warn: bool = True,
        checked: bool = False,
    ) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run the model on one input and decode its output.

        Args:
            prompt: one input, in any form that ``LLM.generate`` takes.
            sampling_params: options of the request.
            request_id: name of the request, for ``abort``; random by default.
            lora_request: LoRA adapter.
            trace_headers: the caller's ``traceparent`` and ``tracestate``, if vLLM traces.
            priority: lower values run earlier (with the priority scheduling policy).
            max_tiles: limit of the tiles that the input may be cut into; None for any number.
            max_area: limit of the ground that the input covers, in square kilometres, if it is known. A part that
                ``window`` or ``bbox`` cuts out counts alone. None for any area.
            watch: asks for pictures of the finished part of this request, which come as ``partial_images`` do. None if
                nobody asks.
            folder: folder for a result on disk without ``path``; None for the system's temporary folder.
            warn: whether to issue an `AssumedWarning` for each sentence of ``assumed`` of the result.
            checked: whether the caller has checked the params by `Binding.check_params`.

        Yields:
            The finished result. Before it, if the input is cut into tiles, reports: ``finished`` is False and
            ``progress`` has the number of finished tiles. Some reports have a picture of the finished part in
            ``outputs``, if ``partial_images`` or ``watch`` asks for it.

        Raises:
            MMOutError: the input or the params are refused, or the request failed. Closing or cancelling the generator
                aborts the request.

        """
        binding = self.output_processor.binding
        request_id = request_id or uuid4().hex
        request = Request(
            OutputParams() if sampling_params is None else sampling_params,
            request_id,
            lora_request,
            priority=priority,
            traced=binding.traced(request_id),
        )
        self.mmout.backlog.observer = self.output_processor.observer
        async with AsyncExitStack() as held:
            span = held.enter_context(request_span(self.output_processor, request_id, trace_headers))
            request.trace_headers = span.headers
            held.enter_context(self.mmout.backlog.holding(request))
            async with self.mmout.readers:  # so that what waits for a credit is bounded too
                prepared = await self._mmout_prepare(request, prompt, max_tiles, max_area, checked=checked)
                if isinstance(prepared, Request):
                    self.mmout.single()
                    await held.enter_async_context(self.mmout.credits.held(prepared.nbytes))
            if isinstance(prepared, Run):
                request.total = 0  # its tiles count from now on
                span.tell(pixels=prepared.pixels)
                prepared.folder = prepared.folder or folder
                held.callback(prepared.close)
                results = self._mmout_run(prepared, watch)
                await held.enter_async_context(aclosing(results))
                async for progress in results:
                    if progress.finished and progress.progress is not None:
                        span.tell(tiles=progress.progress.total)
                    if warn and progress.finished:
                        warn_assumed([progress], stacklevel=4)
                    yield progress
                return
            results = self._mmout_results(request)
            await held.enter_async_context(aclosing(results))
            async for result in results:
                request.done = int(result.finished and result.error is None)
                if result.error is not None:
                    raise result.error
                if not result.finished:
                    yield result
        if warn:
            warn_assumed([result], stacklevel=4)
        yield result

    async def _mmout_send(self, request: Request) -> MultimodalRequestOutput:
        """Run a request whose result is its only output. Cancelling this aborts it."""
        async with aclosing(self._mmout_results(request)) as results:
            return await anext(results)

    async def _mmout_results(self, request: Request) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run a request, and yield its outputs, the result last. Closing or cancelling this aborts it.

        A slow consumer gets every output.
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
            finished = False
            while not finished:
                output = cast("MultimodalRequestOutput", await queue.get())
                while request.reports:
                    yield request.reports.popleft()
                finished = output.finished
            request.internal_id = None  # the engine has ended it
            yield output
        except BaseException as error:
            if request.internal_id is not None:
                if isinstance(error, EngineDeadError):  # the engine cannot be told, but its state here must go
                    self.output_processor.abort_requests([request.internal_id], internal=True)
                else:
                    await self.abort(request.internal_id, internal=True)
            raise
        finally:
            request.release()

    async def _mmout_run(self, run: Run, watch: PreviewRequest | None) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run a request of many parts, and yield its reports and its result."""
        router = self.output_processor
        limit_s = router.binding.settings.decode_timeout_s
        run.attach(self.mmout.budget, self.mmout.wake, limit_s=limit_s, observer=router.observer, watch=watch)
        self.mmout.driven[run] = driven = AsyncRun(self.mmout, run, self._mmout_send)
        try:
            with self.mmout.backlog.holding(run):
                async with aclosing(driven.results()) as results:
                    async for result in results:
                        yield result
        finally:
            driven.when_done(lambda: self.mmout.driven.pop(run, None))

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:  # noqa: FBT001, FBT002 - as vLLM's
        """Abort requests; a scene ends with all its tiles."""
        request_ids = [request_id] if isinstance(request_id, str) else list(request_id)
        if not internal:
            for driven in [*self.mmout.driven.values()]:
                if driven.run.request.request_id in request_ids:
                    driven.abort()
        await super().abort(request_ids, internal)

    async def _mmout_prepare(
        self, request: Request, prompt: Any, max_tiles: int | None, max_area: float | None, *, checked: bool
    ) -> Request | Run:
        """Check a request unless its caller has, and read its input in a thread."""
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
    """Close the input of a request that is gone."""
    if isinstance(prepared, Run):
        prepared.close()
