"""Look up the patch size of transformers backbones, and the number of prefix tokens before the patch tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm_mmout.processors.embedding_grid import EmbeddingGridProcessor
from vllm_mmout.registry.resolve import CONFIG, ENGINE, KEY, parse_names

_PREFIX_TOKENS: Final[Mapping[str, int]] = {
    "beit": 1,
    "data2vec-vision": 1,
    "deit": 2,
    "dinov2": 1,
    "dinov2_with_registers": 1,
    "dinov3_vit": 1,
    "ijepa": 0,
    "siglip_vision_model": 0,
    "vit": 1,
    "vit_msn": 1,
}
"""Number of class and distillation tokens before the patch tokens, by ``model_type``. Register tokens are not
included."""
_HALVING: Final = ("convnext", "convnextv2", "swin", "swinv2")
"""Values of ``model_type`` for models that halve the number of patch rows and columns in each stage after the first."""


def makes_patches(config: Mapping[str, Any], asked: Any) -> bool:
    """Return whether the user or config.json selects the output processor for patch embeddings.

    ``asked`` is the output processor in the engine argument. If it is None, ``config.json`` decides.
    """
    table = config.get("mmout")
    inner = table.get(KEY) if isinstance(table, Mapping) else None
    in_config = config.get(KEY) if inner is None else inner
    wanted = parse_names(asked, ENGINE) if asked is not None else parse_names(in_config, CONFIG)
    return any(choice.name == EmbeddingGridProcessor.name for choice in wanted or ())


def patches_of(config: Mapping[str, Any]) -> dict[str, int]:
    """Return a model's ``patch_size`` and ``prefix_tokens`` as a dict. A value that is not known is left out."""
    vision, model_type = config.get("vision_config"), config["model_type"]
    own = vision if isinstance(vision, Mapping) else config
    options: dict[str, int] = {}
    patch = own.get("patch_size")
    if isinstance(patch, int):
        options["patch_size"] = patch
        if model_type in _HALVING:
            options["patch_size"] *= 2 ** (len(own.get("depths") or (0,) * 4) - 1)
    if model_type in _PREFIX_TOKENS:
        registers = 0 if model_type in ("dinov2", "vit") else own.get("num_register_tokens") or 0
        options["prefix_tokens"] = _PREFIX_TOKENS[model_type] + registers
    return options
