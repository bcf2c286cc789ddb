"""The model of `benchmarks.gpu`: a vision transformer that returns logits of each pixel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

from benchmarks.scene_files import BANDS
from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, RasterMapper, register_output_processor
from vllm_mmout.processors import SegmentationProcessor

TILE = 224
PATCH = 16
SIZES = {
    "ViT-B/16": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "ViT-L/16": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}


def encoder(size: Mapping[str, int]) -> ViTModel:
    """Return an encoder with random weights, which maps pixels [n, 6, 224, 224] to 197 tokens (196 patches and CLS)."""
    config = ViTConfig(image_size=TILE, patch_size=PATCH, num_channels=BANDS, **size)
    return ViTModel(config, add_pooling_layer=False).eval()


class EncoderAndHead(nn.Module):
    """A network of encoder, linear head and bilinear upsampling: [n, 6, 224, 224] to logits [n, 2, 224, 224]."""

    def __init__(self, size: Mapping[str, int]) -> None:
        super().__init__()
        self.encoder = encoder(size)
        self.head = nn.Conv2d(size["hidden_size"], 2, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits of reflectances in the dtype of the weights."""
        tokens = self.encoder(pixels).last_hidden_state[:, 1:]
        side = TILE // PATCH
        patches = self.head(tokens.transpose(1, 2).unflatten(2, (side, side)))
        return nn.functional.interpolate(patches, scale_factor=PATCH, mode="bilinear")


@register_output_processor(SegmentationProcessor)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class SegmentingViT(nn.Module):
    """A segmentation model whose input is reflectance times 10,000, as in the files of the scenes."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = EncoderAndHead(config["encoder"])

    @property
    def compiled_part(self) -> nn.Module:
        """The module that the engine compiles; its input is floats."""
        return self.network

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return the logits of integers or floats [n, 6, 224, 224]."""
        return self.network((pixel_values.float() * 1e-4).to(self.network.head.weight.dtype))


def write_folder(folder: Path, size: Mapping[str, int], dtype: str) -> str:
    """Write a model folder and return its path."""
    config = {
        "architectures": [SegmentingViT.__name__],
        "model_type": "mmout",
        "dtype": dtype,
        "bands": ["blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2"],
        "max_size": TILE,
        "min_size": TILE,
        "encoder": dict(size),
        "mmout": {"model": f"{SegmentingViT.__module__}:{SegmentingViT.__name__}"},
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = SegmentingViT(config).to(getattr(torch, dtype))
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    return str(folder)
