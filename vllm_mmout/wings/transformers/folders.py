"""Choose the transformers model folders that this package serves, and convert their ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm_mmout.wings.transformers.heads import KEY, NATIVE, head_of
from vllm_mmout.wings.transformers.left_to_vllm import is_left
from vllm_mmout.wings.transformers.patches import makes_patches, patches_of

NAME: Final = "transformers"
"""Value of the engine option ``output_processor`` that selects this package even if vLLM itself can serve the model."""
_MODEL: Final = "vllm_mmout.wings.transformers.model:TransformersModel"


def as_ours(
    config: Mapping[str, Any], folder: str, *, asked: str | None, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return ``config.json`` with this package's settings, or None if this package does not serve the folder.

    ``asked`` is the output processor in the engine argument.
    """
    del settings  # no setting concerns these folders
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(first, str) or not isinstance(config.get("model_type"), str) or config.get("auto_map"):
        return None
    head = head_of(first)
    if head is None:
        return None
    patches = makes_patches(config, None if asked == NAME else asked)
    if asked != NAME and not patches and is_left(first, head, folder):
        return None
    table = config.get("mmout")
    settings_table = {
        "output_processor": head.processor,
        **(patches_of(config) if patches else {}),
        **(table if isinstance(table, Mapping) else {}),
        "model": _MODEL,
    }
    if "output_processor" in config:
        settings_table["output_processor"] = config["output_processor"]
    entries = {"model_type": config["model_type"], "folder": folder, **({NATIVE: True} if patches else {})}
    return {**config, "mmout": settings_table, KEY: entries}
