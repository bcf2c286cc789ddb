"""Configure an engine with the logits processor that restricts answers to complete pictures and sounds."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_HERE: Final = "vllm_mmout.wings.tokens.guided"
ON_V1: Final = f"{_HERE}.on_v1:GuidedOnV1"
ON_V2: Final = f"{_HERE}.on_v2:GuidedOnV2"


def configure(vllm_config: VllmConfig) -> None:
    """Change an engine's config so that the engine can restrict answers to complete pictures and sounds.

    This adds a logits processor to the config. It is added as an import path, because each process of the engine
    imports it.
    """
    model_config = vllm_config.model_config
    if model_config is None or model_config.runner_type != "generate":
        return
    from vllm_mmout.engine.binding import resolve_choice
    from vllm_mmout.errors import MMOutError
    from vllm_mmout.wings.tokens.processors.base import TokenProcessor

    try:
        choice = resolve_choice(vllm_config)
    except MMOutError:  # raised again, and then reported, when the engine is made
        return
    if choice is None or not all(issubclass(kind, TokenProcessor) for kind in choice.processors.values()):
        return
    if why_not(vllm_config) is None:
        path = ON_V2 if vllm_config.use_v2_model_runner else ON_V1
        model_config.logits_processors = [*(model_config.logits_processors or ()), path]


def why_not(vllm_config: VllmConfig) -> str | None:
    """Return the reason why an engine cannot restrict the tokens of answers, or None if it can."""
    if vllm_config.speculative_config is not None:
        return "the engine uses speculative decoding, with which vLLM accepts no logits processors"
    if getattr(vllm_config.model_config, "return_sampling_mask", False):
        return "the engine replays sampling, with which vLLM accepts no logits processors"
    if vllm_config.use_v2_model_runner and v2_interface() is None:
        return "Model Runner V2 of this vLLM accepts no logits processors (VLLM_USE_V2_MODEL_RUNNER=0 selects V1)"
    return None


def is_guiding(vllm_config: VllmConfig) -> bool:
    """Return whether an engine's config has the logits processor that restricts the tokens of answers."""
    return any(path in (ON_V1, ON_V2) for path in vllm_config.model_config.logits_processors or ())


def v2_interface() -> Any:
    """Return vLLM's base class of logits processors for Model Runner V2, or None if this vLLM lacks the class."""
    try:
        module = importlib.import_module("vllm.v1.worker.gpu.sample.logits_processor")
    except ImportError:
        return None
    return getattr(module, "LogitsProcessor", None)
