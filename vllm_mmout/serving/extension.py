"""ServerExtension: what a wing has the server do beside the core's routes."""

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
    """A wing's part of the server; it names its class at the point ``routes``. Every method may be left as it is."""

    generations: Mapping[str, Any] | None = None
    """JSON schema of what the wing's service takes at ``/v1/images/generations``."""

    def attach(self, app: FastAPI) -> None:
        """Register the wing's own routes, on a server of any model."""

    def forward_service(self, engine: BoundAsyncLLM) -> type[ForwardService] | None:
        """What the routes share where models of the wing answer as tensors; None: the engine's model is none of its."""
        del engine
        return None

    def service(
        self, engine: Any, models: OpenAIServingModels, options: ServingOptions, store: ResultStore
    ) -> Service | None:
        """What the routes share on a server whose engine is of the wing's kind; None: it is of another. Blocks.

        Args:
            engine: the server's, with output processors.
            models: vLLM's names under which the model is served.
            options: the server's limits.
            store: where results wait to be fetched.

        """
        del engine, models, options, store
        return None

    async def start(self, service: Service, state: State) -> None:
        """Set up what the wing's own routes share, on the server's event loop; ``state`` may keep it."""

    def plugin_answer(self, plugin: Any) -> PluginAnswer | None:
        """What answers ``/pooling`` in place of vLLM's route for the engine's plugin; None: it is not the wing's."""
        del plugin
        return None

    def needed_plugins(self, args: Namespace) -> Sequence[str]:
        """Names that a user's list of plugins (``VLLM_PLUGINS``) must hold for a server of these arguments."""
        del args
        return ()
