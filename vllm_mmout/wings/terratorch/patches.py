"""Look up the patch size of TerraTorch's backbones, and how many class tokens precede the patch tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vllm_mmout.wings.terratorch.scaling import nested

_BACKBONES: Final[Mapping[str, tuple[int, int]]] = {
    "prithvi_eo_v2_600": (14, 1),
    "prithvi_eo_v": (16, 1),
    "terramind_v1": (16, 0),
    "clay_v1": (8, 1),
}
"""Patch side in pixels, and number of class tokens, by the beginning of a backbone's name. The first match counts."""


def patches_of(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return ``patch_size`` and ``prefix_tokens`` of a backbone. Values that cannot be determined are missing.

    ``arguments`` is the table ``init_args`` of an embedding task. Its ``has_cls`` and the backbone's ``patch_size``
    take precedence over the defaults of TerraTorch's backbones.
    """
    network = nested(arguments, "model_args")
    name = str(network.get("backbone", arguments.get("model", ""))).removeprefix("terratorch_")
    patch, classes = next((known for start, known in _BACKBONES.items() if name.startswith(start)), (None, None))
    own = network.get("backbone_patch_size", network.get("patch_size"))
    if isinstance(own, list) and len(own) == 3 and own[1] == own[2]:  # Prithvi's dates, rows and columns
        own = own[1]
    if isinstance(own, int):
        patch = own
    if isinstance(arguments.get("has_cls"), bool):
        classes = int(arguments["has_cls"])
    return {name: value for name, value in (("patch_size", patch), ("prefix_tokens", classes)) if value is not None}
