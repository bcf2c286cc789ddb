"""vLLM endpoint plugin that adds this package's routes to the HTTP server."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.engine.hooks.unserved_folders import remedy
from vllm_mmout.engine.memory import keep_freed_blocks
from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
from vllm_mmout.errors import MMOutError
from vllm_mmout.serving import chat, openapi, pooling
from vllm_mmout.serving import image_routes as images
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.image_routes import Slots
from vllm_mmout.serving.image_service import ImageService
from vllm_mmout.serving.inputs.sources import Sources
from vllm_mmout.serving.metrics import observe
from vllm_mmout.serving.model_cards import describe_models
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.serving.service import Service
from vllm_mmout.wing import extensions

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    from vllm_mmout.serving.extension import ServerExtension

_SPARE = 16
"""Number of extra threads in the server's thread pool, for short calls that block, such as opening a stored result.

The pool also has two threads for each request that may be served at the same time.
"""


class ServingPlugin:
    """vLLM endpoint plugin that adds the routes of this package and its extensions to the HTTP server."""

    name: Final = "mmout_serving"
    required_tasks: Final = None

    def __init__(self) -> None:
        self._extensions: tuple[ServerExtension, ...] = tuple(made() for made in extensions("routes"))

    def attach_router(self, app: FastAPI) -> None:
        """Register the routes."""
        for path, endpoint, description in (
            ("/v1/images/edits", images.edits, openapi.EDITED),
            ("/v1/images/variations", images.variations, openapi.VARIED),
            ("/v1/images/generations", images.generations, openapi.generations(self._extensions)),
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
        for extension in self._extensions:
            extension.attach(app)
        app.add_exception_handler(ApiError, images.refused)
        chat.attach(app)
        pooling.attach(app, self._extensions)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Create the service that all routes share, and store it as ``state.mmout``."""
        options = ServingOptions.from_args(args)
        state.mmout_slots = Slots(options.max_waiting)
        if not hasattr(
            getattr(engine_client, "output_processor", None), "binding"
        ):  # an engine of vLLM without output processors
            named = remedy(engine_client.model_config.model)
            state.mmout = (
                "the model of this server has no output processor, so it has no images or sounds to give; ask the other"
                f" routes{'' if named is None else f', or, {named}'}"
            )
            return
        keep_freed_blocks()
        # Slow uploads and hanging mappers must not take the threads of other requests.
        threads = ThreadPoolExecutor(2 * options.max_waiting + _SPARE, thread_name_prefix="mmout-serve")
        asyncio.get_running_loop().set_default_executor(threads)
        models = state.openai_serving_models
        state.mmout = await asyncio.to_thread(self._service, engine_client, models, args, options)
        await asyncio.to_thread(
            describe_models, models, engine_client.output_processor.binding, engine_client.model_config
        )
        for extension in self._extensions:
            await extension.start(state.mmout, state)

    def _service(self, engine: Any, models: OpenAIServingModels, args: Namespace, options: ServingOptions) -> Service:
        """Create the service that handles the routes' requests. The call blocks, so it runs in a thread."""
        store = _store(options)
        if isinstance(engine, BoundAsyncLLM):
            sources = Sources(
                options,
                local_path=getattr(args, "allowed_local_media_path", "") or None,
                domains=getattr(args, "allowed_media_domains", None),
            )
            observer = observe(engine, models.registry.model_name())
            kinds = (extension.forward_service(engine) for extension in self._extensions)
            kind = next((kind for kind in kinds if kind is not None), ImageService)
            return kind(engine, models, options, store, observer, sources)
        services = (extension.service(engine, models, options, store) for extension in self._extensions)
        service = next((service for service in services if service is not None), None)
        if service is None:
            raise MMOutError(f"no wing serves an engine that is bound as {type(engine).__name__}; use vllm serve")
        return service


def _store(options: ServingOptions) -> ResultStore:
    if options.results_dir is None:
        return ResultStore.temporary(options.result_ttl, options.max_results)
    return ResultStore(Path(options.results_dir), options.result_ttl, options.max_results)
