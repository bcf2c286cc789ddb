"""Configurations of TerraTorch folders, as their authors publish them; no TerraTorch is needed to read them."""

from __future__ import annotations

from typing import Any

BANDS = ["BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2"]


def flood_config(*, size: tuple[int, ...] = (6, 64, 64), **changes: Any) -> dict[str, Any]:
    """The ``config.json`` of a Prithvi model that segments floods; ``changes`` are entries at its top."""
    config = {
        "architectures": ["Terratorch"],
        "num_classes": 0,
        "pretrained_cfg": {
            "input": {
                "target": "pixel_values",
                "data": {
                    "pixel_values": {"type": "torch.Tensor", "shape": list(size)},
                    "location_coords": {"type": "torch.Tensor", "shape": [1, 2]},
                    "temporal_coords": {"type": "torch.Tensor", "shape": [size[1] if len(size) == 4 else 1, 2]},
                },
            },
            "data": {
                "class_path": "terratorch.datamodules.Sen1Floods11NonGeoDataModule",
                "init_args": {"data_root": "unused", "bands": BANDS, "constant_scale": 0.0001},
            },
            "model": {
                "class_path": "terratorch.tasks.SemanticSegmentationTask",
                "init_args": {
                    "model_args": {"backbone": "prithvi_eo_v2_tiny_tl", "backbone_bands": BANDS, "num_classes": 2},
                    "model_factory": "EncoderDecoderFactory",
                },
            },
        },
    }
    return {**config, **changes}


def radar_config() -> dict[str, Any]:
    """The ``config.json`` of a TerraMind model, which takes two images."""
    config = flood_config()
    cfg = config["pretrained_cfg"]
    cfg["input"] = {
        "data": {
            "S2L2A": {"type": "torch.Tensor", "shape": [3, 32, 32]},
            "S1GRD": {"type": "torch.Tensor", "shape": [2, 32, 32]},
        }
    }
    cfg["data"] = {
        "class_path": "terratorch.datamodules.GenericMultiModalDataModule",
        "init_args": {"output_bands": {"S2L2A": ["BLUE", "GREEN", "RED"], "S1GRD": ["VV", "VH"]}},
    }
    return config
