"""Building the network of a TerraTorch folder, and finding its weights in a checkpoint."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor, nn

from vllm_mmout.errors import ModelError, type_and_message
from vllm_mmout.wings.terratorch.config import TerratorchConfig

_EMBEDDING = "EmbeddingGenerationTask"
_BUILT_AS = {
    "SemanticSegmentationTask": "segmentation",
    "PixelwiseRegressionTask": "regression",
    "ClassificationTask": "classification",
    "MultiLabelClassificationTask": "classification",
    "ScalarRegressionTask": "scalar_regression",
}
"""TerraTorch's task -> what its model factories call it."""


def build_network(config: TerratorchConfig) -> nn.Module:
    """Build the network that a folder describes."""
    try:
        from terratorch.registry import MODEL_FACTORY_REGISTRY
        from terratorch.tasks import embedding_generation
    except ImportError as error:
        raise ModelError(
            f"this is a model of TerraTorch, which cannot be imported here ({error}): pip install terratorch"
        ) from error
    arguments = copy.deepcopy(dict(config.pretrained["model"].get("init_args", {})))
    network: dict[str, Any] = dict(arguments.get("model_args") or {})
    if "backbone_pretrained" in network:
        network["backbone_pretrained"] = False  # the weights are the folder's: none are to be fetched
    try:
        if config.task == _EMBEDDING:
            built: nn.Module = _of_embeddings(embedding_generation.EmbeddingGenerationTask, arguments, network)
        else:
            factory = MODEL_FACTORY_REGISTRY.build(arguments.get("model_factory", "EncoderDecoderFactory"))
            built = factory.build_model(task=_BUILT_AS[config.task], **network)
    except Exception as error:
        raise ModelError(
            f"TerraTorch cannot build the network that config.json describes: {type_and_message(error)};"
            ' correct "pretrained_cfg.model.init_args", or install the release of TerraTorch that it was written for'
        ) from error
    return built.eval()


def encode_exactly(network: nn.Module) -> bool:
    """Have a network take location and dates in float32, whatever its own dtype is; says whether it encodes them.

    bfloat16 has no 2023, and no day 257. Prithvi's encoders make their sines and cosines in the dtype of what they are
    given; these are small numbers, which are handed on in the network's dtype.
    """
    from terratorch.models.backbones.prithvi_mae import LocationEncoder, TemporalEncoder

    def in_own_dtype(encoder: Any, _given: Any, encoded: Tensor) -> Tensor:
        return encoded.to(encoder.scale.dtype)

    encoders = [module for module in network.modules() if isinstance(module, LocationEncoder | TemporalEncoder)]
    for encoder in encoders:
        encoder.register_forward_hook(in_own_dtype)
    return bool(encoders)


def _of_embeddings(task: Any, arguments: dict[str, Any], network: dict[str, Any]) -> nn.Module:
    """The network of a task that makes one in its constructor, where it makes the folder of its results as well."""
    with TemporaryDirectory(prefix="mmout-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the files that it would write
        made: nn.Module = task(**{**arguments, "model_args": network, "output_dir": folder}).model
    return made


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
