"""Check and prepare engines that are started with the IO Processor plugin ``mmout``."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.binding import rebase
from vllm_mmout.errors import OptionError
from vllm_mmout.wings.io_plugins.own.mmout_plugin import GROUP, NAME, MMOutPlugin, find_mmout_plugin

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig


def bind_requests(processor: Any) -> None:
    """If vLLM's pooling ``processor`` uses the plugin ``mmout``, make it accept requests without the field ``data``."""
    if isinstance(processor.io_processor, MMOutPlugin):
        from vllm_mmout.wings.io_plugins.own.naming_engines import RequestsBesidePlugin

        rebase(processor, RequestsBesidePlugin)


def bind_async_llm(engine: Any) -> None:
    """Make ``encode`` of a started ``AsyncLLM`` run requests for the plugin ``mmout``, if the engine uses it."""
    if _plugin_of(engine.model_config) == NAME:
        from vllm_mmout.wings.io_plugins.own.naming_engines import NamingAsyncLLM

        rebase(engine, NamingAsyncLLM)


def bind_llm(llm: Any) -> None:
    """Make ``LLM.encode`` run requests for the plugin ``mmout``, if the engine uses this plugin."""
    if find_mmout_plugin(getattr(llm, "pooling_io_processors", None)) is not None:
        from vllm_mmout.wings.io_plugins.own.naming_engines import NamingLLM

        rebase(llm, NamingLLM)


def _plugin_of(model_config: ModelConfig) -> str | None:
    """Return the name of the IO Processor plugin that an engine uses, or None."""
    name: str | None = model_config.io_processor_plugin or getattr(model_config.hf_config, "io_processor_plugin", None)
    return name


def check_engine(vllm_config: VllmConfig, *, bound: bool) -> None:
    """Raise OptionError if the engine's IO Processor plugin is not installed, or does not fit the model.

    The plugin ``mmout`` fits only models with an output processor. ``bound`` is true for such a model. If ``bound`` is
    false, other plugins are not checked.
    """
    model_config = vllm_config.model_config
    argument, name = model_config.io_processor_plugin, _plugin_of(model_config)
    if name is None:
        return
    chosen_by = "io_processor_plugin" if argument else '"io_processor_plugin" in config.json'
    if not bound:
        if name == NAME:
            raise OptionError(
                f"the IO Processor plugin {NAME!r} returns the results of a model's output processor, and model"
                f" {model_config.model} has none; leave {chosen_by} out, or give the model an output processor"
                ' (additional_config={"mmout": {"output_processor": NAME}})'
            )
        return
    from vllm import envs

    allowed = envs.VLLM_PLUGINS
    installed = sorted({point.name for point in entry_points(group=GROUP) if allowed is None or point.name in allowed})
    if name not in installed:
        raise OptionError(
            f"{chosen_by} is {name!r}, and no such IO Processor plugin is installed (known: {', '.join(installed)})"
        )
