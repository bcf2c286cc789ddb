"""The seam of the IO Processor plugin ``mmout``: a prompt that only names a request, which a bound engine runs.

vLLM calls a plugin's ``pre_process`` on the server's event loop, and wants all prompts of a request at once. Ours gives
one, which holds nothing but the request's name: an object that no client can make. The engine's ``encode`` runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import OptionError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.outputs import PoolingRequestOutput
    from vllm.pooling_params import PoolingParams

    from vllm_mmout.engine.async_llm import BoundAsyncLLM, Ways
    from vllm_mmout.engine.llm import LLMGenerate

GROUP: Final = "vllm.io_processor_plugins"
NAME: Final = "mmout"
"""Our entry point in the group."""
TASK: Final = "plugin"
"""vLLM's pooling task of requests that a plugin makes."""
KEY: Final = "mmout_request"
"""Where a prompt, or the ``extra_kwargs`` of its pooling params, names its request."""


def register() -> str:
    """The plugin's class, as vLLM wants it: by name, so that nothing is imported where no model asks for it."""
    return "vllm_mmout.serving.plugin_processor.MMOutIOProcessor"


class NamedRequest(ABC):
    """A request that a prompt stands for."""

    @abstractmethod
    def outputs(
        self, engine: BoundAsyncLLM, request_id: str, ways: Ways
    ) -> AsyncGenerator[PoolingRequestOutput[Any], None]:
        """Run it, and yield its one output; closing or cancelling the generator aborts it.

        Args:
            engine: runs the request's parts.
            request_id: of the caller's choice; other requests may bear the same.
            ways: what else the caller said.

        """


class NamingPlugin(ABC):
    """An IO Processor plugin whose prompts name requests."""

    @abstractmethod
    def run(self, llm: LLMGenerate, data: Any, *, use_tqdm: Any, lora_request: Any) -> PoolingRequestOutput[Any]:
        """Run a request of ``LLM.encode``, whose caller may name any file of this machine.

        Args:
            llm: runs it by its `generate`.
            data: what the prompt held under "data".
            use_tqdm: as of `generate`.
            lora_request: as of `generate`.

        Raises:
            MMOutError: the request is refused, or failed.

        """


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
    """Our plugin among what vLLM makes of pooling requests; None where there is none, or another's.

    Args:
        processors: vLLM's, by pooling task.

    """
    plugin = loaded_plugin(processors)
    return plugin if isinstance(plugin, NamingPlugin) else None


def loaded_plugin(processors: Any) -> Any:
    """The IO Processor plugin of an engine, whosever it is; None without one."""
    return getattr(processors.get(TASK), "io_processor", None) if isinstance(processors, Mapping) else None


def bind_requests(processor: Any) -> None:
    """Bind what vLLM makes of the requests of a plugin, where that is ours; leave any other.

    Args:
        processor: vLLM's ``PluginWithIOProcessorPlugins``.

    """
    if not isinstance(processor.io_processor, NamingPlugin):
        return
    from vllm_mmout.engine.bind import derived
    from vllm_mmout.engine.io_plugin_requests import RequestsBesidePlugin

    processor.__class__ = derived(RequestsBesidePlugin, type(processor))


def check_plugin(vllm_config: VllmConfig, *, bound: bool) -> None:
    """Refuse a plugin that cannot work, before a process of the engine is started.

    Args:
        vllm_config: the engine's.
        bound: whether its model has an output processor.

    Raises:
        OptionError: the plugin is ours, and the model has no output processor; or the model has one, and no such
            plugin is installed (the known ones are listed).

    """
    model_config = vllm_config.model_config
    argument = model_config.io_processor_plugin
    name = argument or getattr(model_config.hf_config, "io_processor_plugin", None)
    if name is None:
        return
    chosen_by = "io_processor_plugin" if argument else '"io_processor_plugin" in config.json'
    if not bound:
        if name == NAME:
            raise OptionError(
                f"the IO Processor plugin {NAME!r} answers with what a model's output processor makes, and model"
                f" {model_config.model} has none; leave {chosen_by} out, or give the model an output processor"
                ' (additional_config={"mmout": {"output_processor": NAME}})'
            )
        return
    known = _known()
    if name not in known:
        raise OptionError(
            f"{chosen_by} is {name!r}, and no such IO Processor plugin is installed (known: {', '.join(known)})"
        )


def _known() -> list[str]:
    """The plugins that vLLM would load."""
    from vllm import envs

    allowed = envs.VLLM_PLUGINS
    names = {point.name for point in entry_points(group=GROUP)}
    return sorted(name for name in names if allowed is None or name in allowed)
