"""Look up the patch size of TerraTorch's backbones, and the kinds of tokens that they return.

Some backbones return class tokens before the patch tokens. Some return separate patch tokens for each date of the
input.
"""

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
"""Patch side in pixels and number of class tokens of TerraTorch's backbones. Each key is a prefix of backbone names.
The first prefix that matches a name is used."""


_DATED_TOKENS_PREFIX: Final = "prithvi_eo_v"
"""Prefix of the names of backbones that return separate tokens for each date of the input."""


def patches_of(arguments: Mapping[str, Any], frames: int | None = None) -> dict[str, int]:
    """Return a dict with the ``patch_size``, ``prefix_tokens`` and ``token_dates`` of a TerraTorch backbone.

    Values that are unknown, and ``token_dates`` below 2, are left out.

    Args:
        arguments: the table ``init_args`` of an embedding task. Its ``has_cls`` and the backbone's ``patch_size`` take
            precedence over the defaults of TerraTorch's backbones.
        frames: number of dates of the model's input, or None if the input has no axis of dates.

    """
    network = nested(arguments, "model_args")
    name = str(network.get("backbone", arguments.get("model", ""))).removeprefix("terratorch_")
    patch, classes = next((known for start, known in _BACKBONES.items() if name.startswith(start)), (None, None))
    own = network.get("backbone_patch_size", network.get("patch_size"))
    dates = frames if name.startswith(_DATED_TOKENS_PREFIX) and not network.get("backbone_use_temporal") else None
    if isinstance(own, list) and len(own) == 3 and own[1] == own[2]:  # Prithvi's dates, rows and columns
        dates = dates // own[0] if dates and isinstance(own[0], int) and own[0] > 0 else None
        own = own[1]
    if isinstance(own, int):
        patch = own
    if isinstance(arguments.get("has_cls"), bool):
        classes = int(arguments["has_cls"])
    facts = {"patch_size": patch, "prefix_tokens": classes, "token_dates": dates if dates and dates > 1 else None}
    return {name: value for name, value in facts.items() if value is not None}
