"""`AsyncMosaic`: a mosaic on an ``AsyncLLM``, whose scenes run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_mmout.engine.hooks.client_errors import as_client_error
from vllm_mmout.engine.mosaic.mosaic import FILES_AT_ONCE
from vllm_mmout.engine.request_output import MultimodalRequestOutput, Progress
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.errors import AbortedError, MMOutError

if TYPE_CHECKING:
    from vllm_mmout.engine.mosaic.run import MosaicRun
    from vllm_mmout.params import OutputParams

    Generate: TypeAlias = Callable[[Any, OutputParams, str], AsyncGenerator[MultimodalRequestOutput, None]]

_AT_ONCE = 16
"""Maximum number of scenes of a mosaic that run at the same time. It is lower if each scene has many files."""


class AsyncMosaic:
    """A mosaic whose scenes run on an ``AsyncLLM``.

    Args:
        run: the planned mosaic.
        request_id: id of the request, with which the ids of its scenes begin.
        generate: function that runs a scene, given its data, params and id.

    """

    def __init__(self, run: MosaicRun, request_id: str, generate: Generate) -> None:
        self._run = run
        self._request_id = request_id
        self._generate = generate
        self._done = [0] * len(run.plan.scenes)
        """Number of finished tiles of each scene."""
        self._news = asyncio.Event()
        files = max(scene.files for scene in run.plan.scenes)
        self._turns = asyncio.Semaphore(max(1, min(_AT_ONCE, FILES_AT_ONCE // files)))
        self._aborted = False

    async def results(self) -> AsyncGenerator[MultimodalRequestOutput, None]:
        """Run the scenes, and yield progress reports and then the result. Closing the generator aborts the scenes.

        Raises:
            MMOutError: a scene failed, or the results cannot be joined.

        """
        scenes = [asyncio.create_task(self._scene(index)) for index in range(len(self._done))]
        running = asyncio.gather(*scenes)
        running.add_done_callback(lambda _: self._news.set())
        try:
            while not running.done():
                await self._news.wait()
                self._news.clear()
                if self._aborted:
                    raise AbortedError("the request was aborted before its result was delivered")
                if not running.done():
                    yield self._report()
            running.result()
            yield await in_thread(lambda: self._run.result(self._request_id), _discard, self._run.abort)
        except MMOutError as error:
            raise as_client_error(error) from error.__cause__
        finally:
            for scene in scenes:
                scene.cancel()
            await asyncio.shield(asyncio.gather(*scenes, running, return_exceptions=True))

    def abort(self) -> None:
        """Abort the mosaic. `results` then raises an AbortedError."""
        self._aborted = True
        self._run.abort()
        self._news.set()

    def _report(self) -> MultimodalRequestOutput:
        progress = Progress(sum(self._done), sum(scene.tiles for scene in self._run.plan.scenes))
        return MultimodalRequestOutput(self._request_id, None, [], 0, finished=False, progress=progress)

    async def _scene(self, index: int) -> None:
        scene = self._run.plan.scenes[index]
        async with self._turns:
            results = self._generate(scene.data, self._run.params(index), f"{self._request_id}-scene-{index}")
            try:
                async with aclosing(results):
                    async for result in results:
                        if result.finished:
                            await in_thread(partial(self._run.take, index, result))
                        elif result.progress is not None:
                            self._done[index] = result.progress.done
                            self._news.set()
            except MMOutError as error:
                self._run.failed(index, error)
        self._done[index] = scene.tiles
        self._news.set()


def _discard(result: MultimodalRequestOutput) -> None:
    """Close a mosaic's result that nobody receives, because the request was cancelled."""
    if result.error is None and hasattr(result.outputs, "close"):
        result.outputs.close()
