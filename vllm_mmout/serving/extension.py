"""ServerExtension: the routes and services that a wing adds to the server."""

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
    """Base class of a wing's part of the server, which the wing names at the extension point ``routes``.

    Each method has a default that adds nothing.
    """

    generations: Mapping[str, Any] | None = None
    """JSON schema of the requests that the wing's service takes at ``/v1/images/generations``."""

    def attach(self, app: FastAPI) -> None:
        """Register the wing's own routes. Called on servers of every model."""

    def forward_service(self, engine: BoundAsyncLLM) -> type[ForwardService] | None:
        """Return the class of the service for an engine with a model of the wing, or None for other models."""
        del engine
        return None

    def service(
        self, engine: Any, models: OpenAIServingModels, options: ServingOptions, store: ResultStore
    ) -> Service | None:
        """Return the service of a server whose engine is of the wing's kind, or None for other engines. Blocks.

        Args:
            engine: the server's engine, with output processors.
            models: vLLM's list of the names under which the model is served.
            options: the server's limits.
            store: the store of results that clients fetch later.

        """
        del engine, models, options, store
        return None

    async def start(self, service: Service, state: State) -> None:
        """Set up the objects of the wing's own routes, on the server's event loop. ``state`` may hold them."""

    def plugin_answer(self, plugin: Any) -> PluginAnswer | None:
        """Return the function that answers ``/pooling`` for the engine's IO plugin, or None for others' plugins."""
        del plugin
        return None

    def needed_plugins(self, args: Namespace) -> Sequence[str]:
        """Return the plugin names that ``VLLM_PLUGINS``, if set, must hold for a server with these arguments."""
        del args
        return ()
