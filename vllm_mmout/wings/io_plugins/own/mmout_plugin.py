"""The IO Processor plugin ``mmout`` as vLLM and engines see it: a prompt that names a request, which the engine runs.

vLLM calls a plugin's ``pre_process`` on the server's event loop, and wants all prompts of a request at once. Ours gives
one, which holds nothing but the request's name: an object that no client can make. The engine's ``encode`` runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm.outputs import PoolingRequestOutput
    from vllm.pooling_params import PoolingParams

    from vllm_mmout.engine.request.async_llm import BoundAsyncLLM, Ways
    from vllm_mmout.engine.request.llm import BoundLLM

GROUP: Final = "vllm.io_processor_plugins"
"""vLLM's group of entry points, ``name = pkg.mod:function``; the function gives the path of the plugin's class."""
NAME: Final = "mmout"
"""Our entry point in the group."""
TASK: Final = "plugin"
"""vLLM's pooling task of requests that a plugin makes."""
KEY: Final = "mmout_request"
"""Where a prompt, or the ``extra_kwargs`` of its pooling params, names its request."""


def register() -> str:
    """The plugin's class, as vLLM wants it: by name, so that nothing is imported where no model asks for it."""
    return "vllm_mmout.wings.io_plugins.own.mmout_io_processor.MMOutIOProcessor"


class NamedRequest(ABC):
    """A request that a prompt stands for."""

    @abstractmethod
    def outputs(
        self, engine: BoundAsyncLLM, request_id: str, ways: Ways
    ) -> AsyncGenerator[PoolingRequestOutput[Any], None]:
        """Run it, and yield its one output; closing or cancelling the generator aborts it."""


class NamingPlugin(ABC):
    """An IO Processor plugin whose prompts name requests."""

    @abstractmethod
    def run(self, llm: BoundLLM, data: Any, *, use_tqdm: Any, lora_request: Any) -> PoolingRequestOutput[Any]:
        """Run a request of ``LLM.encode``, whose caller may name any file of this machine."""


def named_request(prompt: Any, pooling_params: PoolingParams | None) -> NamedRequest | None:
    """The request that a prompt stands for; None for any other prompt.

    vLLM's renderer makes another prompt of tokens, which has the tokens alone; the params come as they were.
    """
    extra = None if pooling_params is None else pooling_params.extra_kwargs
    for place in (prompt, extra):
        found = place.get(KEY) if isinstance(place, Mapping) else None
        if isinstance(found, NamedRequest):
            return found
    return None


def naming_plugin(processors: Any) -> NamingPlugin | None:
    """Our plugin among what vLLM makes of pooling requests; None where there is none, or another's."""
    plugin = getattr(processors.get(TASK), "io_processor", None) if isinstance(processors, Mapping) else None
    return plugin if isinstance(plugin, NamingPlugin) else None
