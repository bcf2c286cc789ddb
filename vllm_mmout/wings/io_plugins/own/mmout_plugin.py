"""IO Processor plugin ``mmout`` of vLLM, through which ``LLM.encode`` and ``AsyncLLM.encode`` run requests.

vLLM calls a plugin's ``pre_process`` on the server's event loop, and expects all prompts of a request at once. This
plugin returns one prompt that holds only a request object, which no client can forge. The engine's ``encode`` runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm.outputs import PoolingRequestOutput
    from vllm.pooling_params import PoolingParams

    from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
    from vllm_mmout.engine.request.llm import BoundLLM

GROUP: Final = "vllm.io_processor_plugins"
"""vLLM's entry point group for IO Processor plugins. An entry point is a function that returns the import path of a
class."""
NAME: Final = "mmout"
"""Name of this package's IO Processor plugin, and of its entry point."""
TASK: Final = "plugin"
"""vLLM's pooling task for requests to an IO Processor plugin."""
KEY: Final = "mmout_request"
"""Key of the request object in a prompt, and in the ``extra_kwargs`` of the prompt's pooling params."""


def register() -> str:
    """Return the import path of the plugin's class. vLLM calls this function to register the plugin."""
    return "vllm_mmout.wings.io_plugins.own.mmout_io_processor.MMOutIOProcessor"


class PromptRequest(ABC):
    """Request to the plugin ``mmout``, stored as an object in a prompt. ``AsyncLLM.encode`` runs it."""

    @abstractmethod
    def outputs(
        self, engine: BoundAsyncLLM, request_id: str, generate_options: Mapping[str, Any]
    ) -> AsyncGenerator[PoolingRequestOutput[Any], None]:
        """Run the request, and yield its only output. Closing or cancelling the generator aborts the request.

        ``generate_options`` are the keyword arguments of the engine's ``generate`` that the caller of ``encode`` gave.
        """


class MMOutPlugin(ABC):
    """Base class of the IO Processor plugin ``mmout``, which runs requests from ``LLM.encode``.

    With ``AsyncLLM.encode``, its prompts contain a `PromptRequest`, which runs itself.
    """

    @abstractmethod
    def run(self, llm: BoundLLM, data: Any, *, use_tqdm: Any, lora_request: Any) -> PoolingRequestOutput[Any]:
        """Run a request from ``LLM.encode``, and return its output. The request may name any local file."""


def prompt_request(prompt: Any, pooling_params: PoolingParams | None) -> PromptRequest | None:
    """Return the request object in ``prompt`` or ``pooling_params``. Return None if both lack a request object.

    vLLM's renderer replaces a prompt of tokens, and drops the key. The pooling params arrive unchanged.
    """
    extra = None if pooling_params is None else pooling_params.extra_kwargs
    for mapping in (prompt, extra):
        request = mapping.get(KEY) if isinstance(mapping, Mapping) else None
        if isinstance(request, PromptRequest):
            return request
    return None


def find_mmout_plugin(processors: Any) -> MMOutPlugin | None:
    """Return the plugin ``mmout`` among vLLM's pooling processors, or None if the engine does not use it."""
    plugin = getattr(processors.get(TASK), "io_processor", None) if isinstance(processors, Mapping) else None
    return plugin if isinstance(plugin, MMOutPlugin) else None
