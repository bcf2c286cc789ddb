"""Which folders of transformers are taken, and what their ``config.json`` is as one of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm_mmout.wings.transformers.heads import KEY, Head, head_of

NAME: Final = "transformers"
"""What the engine argument names as output processor for folders that vLLM could serve itself."""
_MODEL: Final = "vllm_mmout.wings.transformers.model:TransformersModel"


def as_ours(
    config: Mapping[str, Any], folder: str, *, asked: str | None, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """``config.json`` of a folder, as one of ours; None for a folder that is left to vLLM.

    ``asked`` is what the engine argument names as output processor.
    """
    del settings  # none is about such folders
    from vllm_mmout.models.vllm_registry import is_of_vllm  # with vLLM

    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(first, str) or not isinstance(config.get("model_type"), str) or config.get("auto_map"):
        return None
    if asked != NAME and is_of_vllm(first):
        return None
    head = head_of(first)
    if head is None or (asked != NAME and _of_vllms_text_models(first, head)):
        return None
    table = config.get("mmout")
    ours = {"output_processor": head.processor, **(table if isinstance(table, Mapping) else {}), "model": _MODEL}
    if "output_processor" in config:
        ours["output_processor"] = config["output_processor"]
    return {**config, "mmout": ours, KEY: {"model_type": config["model_type"], "folder": folder}}


def _of_vllms_text_models(architecture: str, head: Head) -> bool:
    """Whether vLLM makes the head itself: of its own model of the family, or through its backend of transformers."""
    if not head.text:
        return False
    import transformers
    from vllm.model_executor.models.registry import ModelRegistry

    family = architecture.partition("For")[0].removesuffix("Model")
    if {f"{family}ForCausalLM", f"{family}Model"} & ModelRegistry.models.keys():
        return True
    cls = getattr(transformers, architecture, None)
    return cls is not None and bool(cls.is_backend_compatible())
