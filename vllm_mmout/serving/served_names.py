"""The names under which a server's model is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.serving.errors import ApiError

if TYPE_CHECKING:
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.lora.request import LoRARequest


def adapter_of(models: OpenAIServingModels, model: str | None) -> LoRARequest | None:
    """The LoRA adapter of the model that a request names; None for the server's own.

    Args:
        models: vLLM's.
        model: as a request names it; None: the server's own.

    Raises:
        ApiError: it is not served here (404).

    """
    if not model or models.registry.is_base_model(model):
        return None
    adapter = models.lora_requests.get(model)
    if adapter is None:
        served = ", ".join(path.name for path in models.base_model_paths)
        raise ApiError(404, f"the model {model!r} is not served here (served: {served})", param="model")
    return adapter
