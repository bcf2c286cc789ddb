"""ServingPlugin: our routes as an endpoint plugin of vLLM's server."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.engine.async_llm import BoundAsyncLLM
from vllm_mmout.engine.tokens.async_llm import BoundTokenAsyncLLM
from vllm_mmout.serving import images, openapi, pooling
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.page import routes as page
from vllm_mmout.serving.scenes import routes as scenes
from vllm_mmout.serving.scenes.board import SceneBoard
from vllm_mmout.serving.service import Service, slots
from vllm_mmout.serving.store import ResultStore
from vllm_mmout.serving.tokens.service import TokenService
from vllm_mmout.serving.tokens.speech import speech

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State

_SPARE = 16
"""Threads beside two for each request: one that reads, one that encodes."""


class ServingPlugin:
    """Puts our routes on vLLM's server, whatever its model: what has no output processor says so."""

    name: Final = "mmout_serving"
    required_tasks: Final = None

    def attach_router(self, app: FastAPI) -> None:
        """Register the routes."""
        for path, endpoint, description in (
            ("/v1/images/edits", images.edits, openapi.EDITS),
            ("/v1/images/variations", images.variations, openapi.VARIATIONS),
            ("/v1/images/generations", images.generations, openapi.GENERATIONS),
        ):
            app.add_api_route(path, endpoint, methods=["POST"], tags=["images"], openapi_extra=description)
        path = "/v1/images/results/{name}"
        app.add_api_route(
            path,
            images.results,
            methods=["GET"],
            name="mmout_result",
            tags=["images"],
            openapi_extra=openapi.RESULTS,
        )
        app.add_api_route(path, images.results, methods=["HEAD"], include_in_schema=False)
        app.add_api_route("/v1/audio/speech", speech, methods=["POST"], tags=["audio"], openapi_extra=openapi.SPEECH)
        scenes.attach(app)
        page.attach(app)
        pooling.attach(app)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Set up what the routes share."""
        options = ServingOptions.from_args(args)
        state.mmout_slots = slots(options)
        if not isinstance(engine_client, BoundAsyncLLM | BoundTokenAsyncLLM):
            state.mmout = (
                "the model of this server has no output processor, so it has no images or sounds to give; ask the other"
                " routes"
            )
            return
        # Files that come slowly, and mappers that hang, must not take the threads of other requests.
        threads = ThreadPoolExecutor(2 * options.max_waiting + _SPARE, thread_name_prefix="mmout-serve")
        asyncio.get_running_loop().set_default_executor(threads)
        models = state.openai_serving_models
        if isinstance(engine_client, BoundAsyncLLM):
            board = await asyncio.to_thread(lambda: SceneBoard(_store(options)))
            state.mmout = Service.of(engine_client, models, args, options, board)
        else:
            state.mmout = await asyncio.to_thread(
                lambda: TokenService.of(engine_client, models, options, _store(options))
            )


def _store(options: ServingOptions) -> ResultStore:
    if options.results_dir is None:
        return ResultStore.temporary(options.result_ttl, options.max_results)
    return ResultStore(Path(options.results_dir), options.result_ttl, options.max_results)
