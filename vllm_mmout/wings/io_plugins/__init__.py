"""Support vLLM's IO Processor plugins: our plugin ``mmout``, and plugins of other packages as output processors."""

from __future__ import annotations

from vllm_mmout.wing import Wing

WING = Wing(
    name="io_plugins",
    hooks="vllm_mmout.wings.io_plugins.plugin_hooks:PLUGIN_HOOKS",
    engine="vllm_mmout.wings.io_plugins.own.plugin_binding",
    processor_families={"io_plugin:": "vllm_mmout.wings.io_plugins.foreign.io_plugin_processor:InstalledPlugins"},
    routes="vllm_mmout.wings.io_plugins.own.plugin_answer:PluginRoutes",
)
