"""ServerExtension: the routes and services that an extension package adds to the server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from argparse import Namespace

    from fastapi import FastAPI
    from starlette.datastructures import State
    from starlette.requests import Request
    from starlette.responses import Response
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.serving.service import ForwardService, Service

    PluginAnswer: TypeAlias = Callable[[Request, ForwardService, Mapping[str, Any]], Coroutine[Any, Any, Response]]


class ServerExtension:
    """Base class for the routes and services that an extension package adds to the server.

    The package names its subclass in the field ``routes`` of its `Wing`.

    Each method has a default that adds nothing.
    """

    generations: Mapping[str, Any] | None = None
    """JSON schema of the requests that the extension package's service takes at ``/v1/images/generations``."""

    def attach(self, app: FastAPI) -> None:
        """Register the routes of the extension package. Every server calls this, whatever its model."""

    def forward_service(self, engine: BoundAsyncLLM) -> type[ForwardService] | None:
        """Return the service class for an engine whose model this extension package handles, or None for others."""
        del engine
        return None

    def service(
        self, engine: Any, models: OpenAIServingModels, options: ServingOptions, store: ResultStore
    ) -> Service | None:
        """Return the service for an engine of this extension package's own class, or None for other engines.

        The server calls this in a thread, so it may block.

        Args:
            engine: the server's engine, with output processors.
            models: vLLM's list of the names under which the model is served.
            options: the server's limits.
            store: the store of results that clients fetch later.

        """
        del engine, models, options, store
        return None

    async def start(self, service: Service, state: State) -> None:
        """Set up objects that the package's routes need, for example in ``state``. Runs on the server's event loop."""

    def plugin_answer(self, plugin: Any) -> PluginAnswer | None:
        """Return the function that answers ``/pooling`` for the engine's IO plugin, or None for others' plugins."""
        del plugin
        return None

    def needed_plugins(self, args: Namespace) -> Sequence[str]:
        """Return the plugin names that ``VLLM_PLUGINS``, if set, must hold for a server with these arguments."""
        del args
        return ()
