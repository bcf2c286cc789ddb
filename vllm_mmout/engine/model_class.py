"""Find the class, the output processors and the inputs of a model from its configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.models.model_folders import check_for_children, family_of, is_served, served_class
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.registry.resolve import resolve

if TYPE_CHECKING:
    from vllm.config import ModelConfig

    from vllm_mmout.models.inputs.model_inputs import ModelInputs
    from vllm_mmout.processors.base import OutputProcessor
    from vllm_mmout.registry.choice import Choice
    from vllm_mmout.registry.output_registry import OutputRegistry


def choose(registry: OutputRegistry, model_config: ModelConfig, engine_table: Any = None) -> Choice | None:
    """Return the output processors selected for a model, or None for a text model."""
    return resolve(
        registry,
        engine_table=engine_table,
        config=config_of(model_config),
        architectures=architectures_of(model_config),
        model_class=lambda: model_class(model_config),
        settings=EngineSettings.__struct_fields__,
        # An author's model that returns a tensor needs only an input mapper.
        fallback="tensor" if is_served(model_config.architecture) else None,
    )


def config_of(model_config: ModelConfig) -> dict[str, Any]:
    """Return the model's ``config.json``. If an extension package serves the model, add missing entries.

    The package adds the output processor and the options of the output processor.
    """
    from vllm_mmout.models.config import config_json  # needs transformers

    config = config_json(model_config.hf_config)
    family = family_of(config)
    return config if family is None else family.completed(config)


def architectures_of(model_config: ModelConfig) -> list[str]:
    """Return the architectures that the model's ``config.json`` names."""
    return list(getattr(model_config.hf_config, "architectures", None) or [])


def model_class(model_config: ModelConfig) -> type | None:
    """Return the original class of a model. Return None for a text model of vLLM that is not imported yet.

    The original class has no adapter of this package around it. Importing a text model of vLLM here would slow every
    text engine down. vLLM itself imports models with multimodal input in this process. The modules of
    other packages are imported, because they may apply our decorators themselves.
    """
    if is_served(model_config.architecture):
        return served_class(model_config.architecture)
    if not model_config.is_multimodal_model and _is_own_and_not_imported(model_config):
        return None

    from vllm.model_executor.model_loader import get_model_architecture

    cls: type = get_model_architecture(model_config)[0]
    return cls


def process_pictures(model: type) -> None:
    """Register a picture processor with vLLM for a model that generates tokens from pictures.

    A class with a processor of its own is left unchanged.
    """
    if generates_from_pictures(model) and "_processor_factory" not in vars(model):
        from vllm_mmout.engine.generating_inputs import register

        register(model)


def generates_from_pictures(model: type) -> bool:
    """Return whether a class is written for vLLM, generates tokens, and accepts pictures in its prompts."""
    raw = getattr(model, "supports_multimodal_raw_input_only", False)
    return bool(getattr(model, "supports_multimodal", False)) and not raw and hasattr(model, "compute_logits")


def check_inputs_of_generating(model_config: ModelConfig) -> None:
    """Raise if a model that generates tokens has registered input functions that vLLM cannot call."""
    cls = model_class(model_config)
    if cls is None or not (names := ", ".join(MULTIMODAL_INPUT_REGISTRY.registered(cls).decorators)):
        return
    if not generates_from_pictures(cls):
        raise RegistrationError(
            f"model {cls.__name__} generates and takes no pictures, so the functions that {names} registered would"
            " never be called; remove them, or derive the class from"
            " vllm.model_executor.models.interfaces.SupportsMultiModal"
        )
    from vllm_mmout.engine.generating_inputs import check_release, is_registered
    from vllm_mmout.models.inputs.context import InputContext
    from vllm_mmout.models.inputs.picture_inputs import PictureInputs

    check_release()
    if not is_registered(cls):
        raise RegistrationError(
            f"model {cls.__name__} has a processor of its own (MULTIMODAL_REGISTRY.register_processor), so the"
            f" functions that {names} registered would never be called; remove one of the two"
        )
    if getattr(model_config.multimodal_config, "mm_processor_kwargs", None):
        raise OptionError(
            f"mm_processor_kwargs cannot be used with model {cls.__name__}, whose registered functions take no options;"
            " leave them out",
            param="mm_processor_kwargs",
        )
    PictureInputs(cls, InputContext(model_config)).check()


def model_inputs(model_config: ModelConfig, *, in_process: bool) -> ModelInputs | None:
    """Return the mapper that builds a model's inputs, or None if vLLM builds the inputs itself.

    vLLM prepares them for models written for vLLM without a registered input mapper.
    """
    cls = model_class(model_config)
    if cls is None:
        return None
    from vllm.model_executor.models.interfaces_base import is_vllm_model
    from vllm.utils.system_utils import get_mp_context

    from vllm_mmout.models.inputs.context import InputContext
    from vllm_mmout.models.inputs.model_inputs import ModelInputs

    served = is_served(model_config.architecture)
    adapted = served and not is_vllm_model(cls)
    if not adapted and MULTIMODAL_INPUT_REGISTRY.registered(cls).mapper is None:
        return None
    if served and not in_process and get_mp_context().get_start_method() != "fork":  # type: ignore[no-untyped-call]
        check_for_children(cls)
    return ModelInputs(cls, InputContext(model_config), adapted=adapted)


def _is_own_and_not_imported(model_config: ModelConfig) -> bool:
    """Return whether vLLM itself defines the model's class, in a module that this process has not imported."""
    registry = model_config.registry
    architecture = model_config.architecture
    if architecture not in registry.models:  # vLLM derives "LlamaForSequenceClassification" from "LlamaForCausalLM"
        architecture = registry._normalize_arch(architecture, model_config)  # noqa: SLF001 - vLLM has no public way
    module = getattr(registry.models.get(architecture), "module_name", "")
    return module.startswith("vllm.") and module not in sys.modules


def create_output_processor(
    registry: OutputRegistry, model_config: ModelConfig | None, engine_table: Any
) -> OutputProcessor | type:
    """Return the default output processor of a model, or vLLM's own output processor class for a text model.

    This implements `OutputRegistry.create_output_processor`.
    """
    choice = None if model_config is None else choose(registry, model_config, engine_table)
    if model_config is None or choice is None:
        from vllm.v1.engine.output_processor import OutputProcessor as TextOutputProcessor

        return TextOutputProcessor
    return choice.create(config_of(model_config), choice.default)[choice.default]


def short_name(model: str) -> str:
    """Return the last part of the path if ``model`` is a folder. Return a hub id unchanged."""
    return Path(model).name if Path(model).is_dir() else model
