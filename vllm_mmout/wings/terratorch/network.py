"""Build the network of a TerraTorch folder, and select its weights in a checkpoint."""

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
_FACTORY_TASKS = {
    "SemanticSegmentationTask": "segmentation",
    "PixelwiseRegressionTask": "regression",
    "ClassificationTask": "classification",
    "MultiLabelClassificationTask": "classification",
    "ScalarRegressionTask": "scalar_regression",
}
"""Value for the argument ``task`` of TerraTorch's model factories, by name of the task class."""


def build_network(config: TerratorchConfig) -> nn.Module:
    """Build the network of a TerraTorch model, in evaluation mode. Raise ModelError if it cannot be built."""
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
        network["backbone_pretrained"] = False  # the weights come from the folder, so do not download any
    try:
        if config.task == _EMBEDDING:
            built: nn.Module = _build_embedding_network(
                embedding_generation.EmbeddingGenerationTask, arguments, network
            )
        else:
            factory = MODEL_FACTORY_REGISTRY.build(arguments.get("model_factory", "EncoderDecoderFactory"))
            built = factory.build_model(task=_FACTORY_TASKS[config.task], **network)
    except Exception as error:
        raise ModelError(
            f"TerraTorch cannot build the network that config.json describes: {type_and_message(error)};"
            ' correct "pretrained_cfg.model.init_args", or install the release of TerraTorch that it was written for'
        ) from error
    return built.eval()


def encode_exactly(network: nn.Module) -> bool:
    """Make a network's encoders of location and dates compute in float32. Return whether it has such encoders.

    bfloat16 can hold neither 2023 nor 257, a day of the year. Prithvi's encoders compute sines and cosines in the
    dtype of their input. The encodings are small numbers, and a hook casts them to the network's dtype.
    """
    from terratorch.models.backbones.prithvi_mae import LocationEncoder, TemporalEncoder

    def in_own_dtype(encoder: Any, _inputs: Any, encoded: Tensor) -> Tensor:
        return encoded.to(encoder.scale.dtype)

    encoders = [module for module in network.modules() if isinstance(module, LocationEncoder | TemporalEncoder)]
    for encoder in encoders:
        encoder.register_forward_hook(in_own_dtype)
    return bool(encoders)


def _build_embedding_network(task: Any, arguments: dict[str, Any], network: dict[str, Any]) -> nn.Module:
    """Build the network of a TerraTorch embedding task. The task gets a temporary output folder, deleted on return.

    TerraTorch creates the output folder as soon as the task is constructed, although only the network is needed here.
    """
    with TemporaryDirectory(prefix="mmout-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings are about files that it would write
        built: nn.Module = task(**{**arguments, "model_args": network, "output_dir": folder}).model
    return built


REMEDY = (
    'Give the checkpoint that TerraTorch wrote in training ({"state_dict": {"model.encoder...": ...}}), and the'
    ' "pretrained_cfg.model" that it was trained with; names may depend on the release of TerraTorch'
)
_TASK = "model."
"""Prefix of the network's weight names in a checkpoint that a TerraTorch task saved. Entries without this prefix, such
as weights of the loss, are needed only for training."""
_AUXILIARY = "aux_heads."
"""Prefix of the names of auxiliary decoders' weights. Auxiliary decoders are used only in training."""


def weights_of(stored: Mapping[str, Any], network: nn.Module) -> dict[str, Tensor]:
    """Return a checkpoint's weights, named as in ``network``.

    Weights that ``network`` lacks are kept, so that a strict load reports them. ``stored`` is a checkpoint
    (``{"state_dict": ...}``), or weights by name, with or without the prefix ``model.``.
    """
    own = network.state_dict()
    # Position embeddings fit the image size that the folder sets, even if the training had another size.
    weights = {name: buffer for name, buffer in network.named_buffers() if "pos_embed" in name and name in own}
    of_size = dict(weights)
    without_heads = not any(name.startswith(_AUXILIARY) for name in own)
    for stored_name, weight in _network_weights(stored, own).items():
        name = stored_name if stored_name in own else stored_name.replace("_timm_module.", "")
        if name in of_size and of_size[name].shape != weight.shape:
            continue
        if not (without_heads and name.startswith(_AUXILIARY)):
            weights[name] = weight
    return weights


def _network_weights(stored: Mapping[str, Any], network_state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the network's weights from the checkpoint ``stored``. Remove the prefix "model." from the weight names."""
    entries = stored.get("state_dict")
    named: Mapping[str, Any] = stored if entries is None else entries
    of_task = {name.removeprefix(_TASK): weight for name, weight in named.items() if name.startswith(_TASK)}
    plain = entries is None and (len(of_task) < len(named) or named.keys() <= network_state.keys())
    return named if plain or not of_task else of_task
