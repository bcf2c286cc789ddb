"""Building the network of a TerraTorch folder, without weights."""

from __future__ import annotations

import copy
import warnings
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import ModelError, type_and_message

if TYPE_CHECKING:
    from torch import Tensor, nn

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
