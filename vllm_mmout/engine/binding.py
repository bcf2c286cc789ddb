"""Binding: what an engine whose model has an output processor knows beyond vLLM's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_mmout.engine.log import logger
from vllm_mmout.engine.model_class import choose, config_of, model_inputs
from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.io_plugin import IOPluginProcessor
from vllm_mmout.processors.tokens import TokenProcessor
from vllm_mmout.registry import MULTIMODAL_OUTPUT_REGISTRY

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.renderers import BaseRenderer

    from vllm_mmout.engine.foreign.plugin import Plugin, PluginClass
    from vllm_mmout.engine.tokens.binding import TokenBinding
    from vllm_mmout.models.model_inputs import ModelInputs
    from vllm_mmout.processors.base import OutputProcessor
    from vllm_mmout.registry.choice import Choice

OPTIONS_KEY = "mmout"
"""Our table in ``additional_config``."""
_OF_PLUGINS = frozenset({"processor", "indices", "partial_images", "part"})
"""Options of requests through IO plugins; pictures of what grows they have none, as other processors of no rasters."""


@dataclass(frozen=True)
class Binding:
    """The processors and settings of one bound engine."""

    model: str
    """Served name, for messages."""
    processors: Mapping[str, OutputProcessor]
    """This process's instances by name, the default first."""
    settings: EngineSettings
    inputs: ModelInputs | None
    """The model's input side; None: vLLM renders the inputs."""
    raw_input: bool
    """Whether the model takes raw tensors and no tokens; a request without any would end the engine."""
    max_num_seqs: int
    """Requests of a full step."""
    max_in_flight: int
    max_tiles: int
    choice: Choice
    plugin_classes: Mapping[str, PluginClass] = field(default_factory=dict)
    """The IO plugins among the processors, by the same names."""
    plugins: Mapping[str, Plugin] = field(default_factory=dict)
    """Their objects, which are made when the engine is there."""

    def with_plugins(self, vllm_config: VllmConfig, renderer: BaseRenderer) -> Binding:
        """The same with the objects of its IO plugins.

        Raises:
            RegistrationError: one cannot be made.

        """
        plugins = {name: found.make(vllm_config, renderer) for name, found in self.plugin_classes.items()}
        responding = {
            name: processor.responding(plugins[name].output_to_response)
            for name, processor in self.processors.items()
            if isinstance(processor, IOPluginProcessor)
        }
        return replace(self, plugins=plugins, processors={**self.processors, **responding})

    def plugin_of(self, params: OutputParams) -> str | None:
        """Name of the processor that a request asks for, where it is an IO plugin; else None."""
        first = self.choice.pick(params.processor)[0]
        return first if first in self.plugin_classes else None

    def check_params(self, params: OutputParams) -> None:
        """Check what a request asks of this model.

        Raises:
            OptionError: a pick or an ``output`` does not exist here, the known ones are listed; or a pick is an IO
                plugin, and there is another pick, or an option that it cannot honour.

        """
        if params.sampling is not None:
            raise OptionError(
                f"sampling is for models that generate tokens, and {self.model} answers in one forward; leave it out",
                param="sampling",
            )
        self._check_plugin(params)
        for name in self.choice.pick(params.processor):
            choices = self.processors[name].outputs
            if params.output is not None and params.output not in choices:
                has = f"known: {', '.join(choices)}" if choices else "it has one kind of output; leave the option out"
                raise OptionError(f"output processor {name!r} has no output {params.output!r} ({has})", param="output")

    def _check_plugin(self, params: OutputParams) -> None:
        picks = self.choice.pick(params.processor)
        plugin = next((name for name in picks if name in self.plugin_classes), None)
        if plugin is None:
            return
        if len(picks) > 1:
            raise OptionError(
                f"output processor {plugin!r} is an IO plugin, which makes the model's inputs itself; ask for it alone,"
                f" not together with {', '.join(repr(name) for name in picks if name != plugin)}",
                param="processor",
            )
        plain = OutputParams()
        for option in msgspec.structs.fields(OutputParams):
            name = option.name
            if name not in _OF_PLUGINS and getattr(params, name) != getattr(plain, name):
                raise OptionError(
                    f"{name} is not for {plugin!r}: an IO plugin reads its input and makes its result itself; leave it"
                    " out, or put what it means into the plugin's own data",
                    param=name,
                )


def resolve_choice(vllm_config: VllmConfig) -> Choice | None:
    """The output processors of an engine's model, None for a text model; the same in every process of the engine.

    Raises:
        OptionError: an unknown name or option; the known ones are listed.
        RegistrationError: a processor cannot be imported.

    """
    additional = vllm_config.additional_config
    table = additional.get(OPTIONS_KEY) if isinstance(additional, Mapping) else None
    return choose(MULTIMODAL_OUTPUT_REGISTRY, vllm_config.model_config, table)


def make_binding(vllm_config: VllmConfig, *, in_process: bool = False) -> Binding | TokenBinding | None:
    """Resolve, check and make what binds an engine; before any process of the engine is started.

    Args:
        vllm_config: the engine's.
        in_process: whether the engine will run in this process.

    Raises:
        MMOutError: as ``resolve_choice``, or an option has a wrong value.

    """
    choice = resolve_choice(vllm_config)
    if choice is None:
        return None
    model_config = vllm_config.model_config
    config: dict[str, Any] = config_of(model_config)
    served = model_config.served_model_name
    name = _short_name(served if isinstance(served, str) else model_config.model)
    if model_config.runner_type == "generate":
        from vllm_mmout.engine.tokens.binding import make_token_binding

        return make_token_binding(vllm_config, choice, config, name)
    settings = EngineSettings.from_mapping(choice.settings)
    processors = choice.create(config)
    _refuse_tokens(processors, choice)
    requests = vllm_config.scheduler_config.max_num_seqs
    return Binding(
        model=name,
        processors=processors,
        settings=settings,
        inputs=model_inputs(model_config, in_process=in_process),
        raw_input=model_config.is_multimodal_raw_input_only_model,
        max_num_seqs=requests,
        max_in_flight=settings.max_in_flight or max(16, 4 * requests),
        max_tiles=settings.max_tiles or 2 * requests,
        choice=choice,
        plugin_classes=_plugin_classes(processors),
    )


def _refuse_tokens(processors: Mapping[str, OutputProcessor], choice: Choice) -> None:
    """Refuse processors of tokens for a model that answers in one forward."""
    for name, processor in processors.items():
        if isinstance(processor, TokenProcessor):
            raise OptionError(
                f"output processor {name!r} ({choice.chosen_by}) decodes generated tokens, and the model answers in one"
                ' forward: name a processor of tensors, or start a model that generates with runner="generate"'
            )


def _plugin_classes(processors: Mapping[str, OutputProcessor]) -> dict[str, PluginClass]:
    """The classes of the IO plugins among processors, imported."""
    wanted = {name: found.plugin for name, found in processors.items() if isinstance(found, IOPluginProcessor)}
    if not wanted:
        return {}
    from vllm_mmout.engine.foreign.plugin import PluginClass

    return {name: PluginClass.of(plugin) for name, plugin in wanted.items()}


def _short_name(model: str) -> str:
    """A folder's own name, a hub id as it is."""
    return Path(model).name if Path(model).is_dir() else model


def log_binding(binding: Binding | TokenBinding) -> None:
    """The one line at start."""
    logger.info(
        "vllm_mmout: model %s answers through %s, chosen by %s; the engine is bound",
        binding.model,
        ", ".join(f"{name} ({type(processor).__qualname__})" for name, processor in binding.processors.items()),
        binding.choice.chosen_by,
    )
