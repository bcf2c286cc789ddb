"""`ServerExtension`, the base class for routes and services that an extension package adds to the server."""

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
    """JSON schema of the requests that this extension accepts at ``/v1/images/generations``. None if the extension
    accepts no such requests."""

    def attach(self, app: FastAPI) -> None:
        """Add the routes of the extension to ``app``.

        Every server calls this method, whatever model the server runs.
        """

    def forward_service(self, engine: BoundAsyncLLM) -> type[ForwardService] | None:
        """Return the service class that this extension adds for an engine's model. Return None for other models."""
        del engine
        return None

    def service(
        self, engine: Any, models: OpenAIServingModels, options: ServingOptions, store: ResultStore
    ) -> Service | None:
        """Create the service for ``engine``. Return None if this extension does not support the engine.

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
        """Set up objects that the extension's routes need, for example in ``state``.

        This runs on the server's event loop.
        """

    def plugin_answer(self, plugin: Any) -> PluginAnswer | None:
        """Return the function that answers ``/pooling`` for an IO processor plugin of vLLM, or None."""
        del plugin
        return None

    def needed_plugins(self, args: Namespace) -> Sequence[str]:
        """Return names of vLLM plugins that must be loaded on a server with these arguments.

        They are added to ``VLLM_PLUGINS`` if that variable is set.
        """
        del args
        return ()
