"""What a checkpoint of TerraTorch holds for a network, by the network's own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

REMEDY = (
    'Give the checkpoint that TerraTorch wrote in training ({"state_dict": {"model.encoder...": ...}}), and the'
    ' "pretrained_cfg.model" that it was trained with; names may depend on the release of TerraTorch'
)
_TASK = "model."
"""What a task calls its network; beside it a checkpoint has what training alone needs, as weights of the loss."""
_AUXILIARY = "aux_heads."
"""Decoders that help in training; what they give is no result."""


def weights_of(stored: Mapping[str, Any], network: nn.Module) -> dict[str, Tensor]:
    """The weights of a network, by its own names; names that it does not have are among them.

    They are those of a checkpoint (``{"state_dict": ...}``), or by name, with or without ``model.`` before all.
    """
    own = network.state_dict()
    # Made for the size of the images that the folder names, whatever size the training had.
    found = {name: buffer for name, buffer in network.named_buffers() if "pos_embed" in name and name in own}
    of_size = dict(found)
    without_heads = not any(name.startswith(_AUXILIARY) for name in own)
    for said, weight in _of_network(stored, own).items():
        name = said if said in own else said.replace("_timm_module.", "")
        if name in of_size and of_size[name].shape != weight.shape:
            continue
        if not (without_heads and name.startswith(_AUXILIARY)):
            found[name] = weight
    return found


def _of_network(stored: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a checkpoint that is the network's, by names without the task's."""
    entries = stored.get("state_dict")
    named: Mapping[str, Any] = stored if entries is None else entries
    of_task = {name.removeprefix(_TASK): weight for name, weight in named.items() if name.startswith(_TASK)}
    plain = entries is None and (len(of_task) < len(named) or named.keys() <= own.keys())
    return named if plain or not of_task else of_task
