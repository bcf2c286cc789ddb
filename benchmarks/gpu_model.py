"""The networks of `benchmarks.gpu`, with random weights, and the model that serves them: logits of each pixel."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import SegformerConfig, SegformerForSemanticSegmentation, UperNetConfig, ViTConfig, ViTModel
from transformers.models.upernet.modeling_upernet import UperNetHead

from benchmarks.compiled import prithvi
from benchmarks.scene_files import BANDS
from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, RasterMapper, register_output_processor
from vllm_mmout.processors import SegmentationProcessor

TILE = 224
PATCH = 16
CLASSES = 2
_VIT_L = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_HAS_TERRATORCH = importlib.util.find_spec("terratorch") is not None
NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "ViT-B/16": {
        "head": "linear",
        "encoder": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    },
    "ViT-L/16": {"head": "linear", "encoder": _VIT_L},
    ("Prithvi 300M, UPerNet" if _HAS_TERRATORCH else "ViT of Prithvi 300M's size (6 bands, 1 frame), UPerNet"): {
        "head": "terratorch" if _HAS_TERRATORCH else "upernet",
        "encoder": _VIT_L,
    },
    "SegFormer B2": {
        "head": "segformer",
        "encoder": {"depths": [3, 4, 6, 3], "hidden_sizes": [64, 128, 320, 512], "decoder_hidden_size": 768},
    },
}
"""Networks by name. "encoder" holds the sizes of the encoder."""
_TINY_VIT = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 128}
TINY: Mapping[str, Mapping[str, Any]] = {
    "tiny ViT/16": {"head": "linear", "encoder": _TINY_VIT},
    "tiny ViT/16, UPerNet": {"head": "upernet", "encoder": _TINY_VIT},
    "tiny SegFormer": {
        "head": "segformer",
        "encoder": {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 40, 64], "decoder_hidden_size": 32},
    },
}


class LinearOnViT(nn.Module):
    """A vision transformer with a linear head and bilinear upsampling: [n, 6, 224, 224] to logits [n, 2, 224, 224]."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        config = ViTConfig(image_size=TILE, patch_size=PATCH, num_channels=BANDS, **sizes)
        self.encoder = ViTModel(config, add_pooling_layer=False)
        self.head: nn.Module = nn.Conv2d(config.hidden_size, CLASSES, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits of reflectances in the dtype of the weights."""
        return _scaled(self.head(_as_map(self.encoder(pixels).last_hidden_state)), PATCH)


class UPerNetOnViT(LinearOnViT):
    """A vision transformer with the head UPerNet of transformers on four of its layers."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__(sizes)
        self.head = UperNetHead(UperNetConfig(hidden_size=256, num_labels=CLASSES), [sizes["hidden_size"]] * 4)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits of reflectances in the dtype of the weights."""
        states = self.encoder(pixels, output_hidden_states=True).hidden_states
        quarter = (len(states) - 1) // 4
        return _scaled(self.head([_as_map(states[quarter * number]) for number in range(1, 5)]), PATCH)


class Segformer(nn.Module):
    """SegFormer of transformers, with its logits upsampled to the size of the input."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = SegformerForSemanticSegmentation(
            SegformerConfig(num_channels=BANDS, num_labels=CLASSES, **sizes)
        )

    @property
    def encoder(self) -> nn.Module:
        """The network without its head."""
        return self.network.segformer

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits of reflectances in the dtype of the weights."""
        return _scaled(self.network(pixels).logits, 4)


def _as_map(tokens: Tensor) -> Tensor:
    """Convert the class token and the patches of a ViT, [n, 197, channels], to a map [n, channels, 14, 14]."""
    side = TILE // PATCH
    return tokens[:, 1:].transpose(1, 2).unflatten(2, (side, side))


def _scaled(logits: Tensor, factor: int) -> Tensor:
    return nn.functional.interpolate(logits, scale_factor=factor, mode="bilinear")


class OfTerratorch(nn.Module):
    """Prithvi-EO-2.0 300M with UPerNet, built by TerraTorch."""

    def __init__(self, _sizes: Mapping[str, Any]) -> None:
        super().__init__()
        self.network: Any = prithvi("prithvi_eo_v2_300", 256, (5, 11, 17, 23), CLASSES)

    @property
    def encoder(self) -> nn.Module:
        """The network without its decoder."""
        encoder: nn.Module = self.network.encoder
        return encoder

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits of reflectances in the dtype of the weights."""
        logits: Tensor = self.network(pixels).output
        return logits


_HEADS = {"linear": LinearOnViT, "upernet": UPerNetOnViT, "segformer": Segformer, "terratorch": OfTerratorch}


def build(network: Mapping[str, Any]) -> Any:
    """Return a network with random weights and the module ``encoder``, for a value of `NETWORKS`."""
    return _HEADS[network["head"]](network["encoder"]).eval()


@register_output_processor(SegmentationProcessor)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class SegmentingModel(nn.Module):
    """A segmentation model whose input is reflectance times 10,000, as in the files of the scenes."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = build(config["network"])

    @property
    def compiled_part(self) -> nn.Module:
        """The module that the engine compiles; its input is floats."""
        part: nn.Module = self.network
        return part

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the logits of integers or floats [n, 6, 224, 224]."""
        logits: Tensor = self.network((pixel_values.float() * 1e-4).to(next(self.network.parameters()).dtype))
        return logits


def write_folder(folder: Path, network: Mapping[str, Any], dtype: str) -> str:
    """Write a model folder and return its path."""
    config = {
        "architectures": [SegmentingModel.__name__],
        "model_type": "mmout",
        "dtype": dtype,
        "bands": ["blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2"],
        "max_size": TILE,
        "min_size": TILE,
        "network": network,
        "mmout": {"model": f"{SegmentingModel.__module__}:{SegmentingModel.__name__}"},
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = SegmentingModel(config).to(getattr(torch, dtype))
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    return str(folder)
