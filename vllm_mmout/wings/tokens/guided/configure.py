"""Engines whose requests can be guided: what they are given when their config is made."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_HERE: Final = "vllm_mmout.wings.tokens.guided"
ON_V1: Final = f"{_HERE}.on_v1:GuidedOnV1"
ON_V2: Final = f"{_HERE}.on_v2:GuidedOnV2"


def configure(vllm_config: VllmConfig) -> None:
    """Give an engine whose model writes media tokens its logits processor, behind those that a user names.

    It is named by its path: each process of the engine imports it.
    """
    model_config = vllm_config.model_config
    if model_config is None or model_config.runner_type != "generate":
        return
    from vllm_mmout.engine.binding import resolve_choice
    from vllm_mmout.errors import MMOutError
    from vllm_mmout.wings.tokens.processors.base import TokenProcessor

    try:
        choice = resolve_choice(vllm_config)
    except MMOutError:  # raised again where the engine is made, which is the place for it
        return
    if choice is None or not all(issubclass(kind, TokenProcessor) for kind in choice.processors.values()):
        return
    if why_not(vllm_config) is None:
        path = ON_V2 if vllm_config.use_v2_model_runner else ON_V1
        model_config.logits_processors = [*(model_config.logits_processors or ()), path]


def why_not(vllm_config: VllmConfig) -> str | None:
    """Why no request of an engine can be guided; None: it can."""
    if vllm_config.speculative_config is not None:
        return "the engine decodes speculatively, where vLLM takes no logits processors"
    if getattr(vllm_config.model_config, "return_sampling_mask", False):
        return "the engine replays sampling, where vLLM takes no logits processors"
    if vllm_config.use_v2_model_runner and v2_interface() is None:
        return "Model Runner V2 of this vLLM takes no logits processors (VLLM_USE_V2_MODEL_RUNNER=0 takes the other)"
    return None


def is_guiding(vllm_config: VllmConfig) -> bool:
    """Whether an engine has the logits processor."""
    return any(path in (ON_V1, ON_V2) for path in vllm_config.model_config.logits_processors or ())


def v2_interface() -> Any:
    """The class of logits processors of Model Runner V2; None where a release has none."""
    try:
        module = importlib.import_module("vllm.v1.worker.gpu.sample.logits_processor")
    except ImportError:
        return None
    return getattr(module, "LogitsProcessor", None)
