"""What results are compared with: TerraTorch's own network, in plain PyTorch, on tiles of an array."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import rasterio

SURE = {"float32": 1e-4, "bfloat16": 2**-6}
"""Of the range of all logits: where the best two are nearer, another order of additions may choose the other."""


class Plain:
    """The model of a folder as TerraTorch makes it (``InferenceRunner``), fed as the folder's data module feeds it."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        import torch
        from make_model import data_module_of, network_of

        config = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
        weights = torch.load(folder / "model.pt", weights_only=True)["state_dict"]
        self.dtype = getattr(torch, dtype)
        self.module = data_module_of(config)
        self.data = config["input"]["data"]
        self.target = config["input"].get("target")
        self.tile = tuple(self.data[self.target or next(iter(self.data))]["shape"][-2:])
        self.frames = (
            self.data[self.target]["shape"][1] if self.target and len(self.data[self.target]["shape"]) == 4 else 1
        )
        if config["model"]["class_path"].endswith(("SemanticSegmentationTask", "PixelwiseRegressionTask")):
            from terratorch.vllm import InferenceRunner

            runner = InferenceRunner(copy.deepcopy(config))
            runner.load_state_dict(weights)
            self.network = runner.model
        else:  # it knows no other task
            self.network = network_of(config)
            self.network.load_state_dict({name.removeprefix("model."): weight for name, weight in weights.items()})
        self.network = self.network.eval().to(self.dtype)
        self._encode_in_float32()

    def _encode_in_float32(self):
        """Have places and dates encoded in float32, in which they are what they are, and rounded then."""
        from terratorch.models.backbones.prithvi_mae import LocationEncoder, TemporalEncoder

        for module in self.network.modules():
            if isinstance(module, LocationEncoder | TemporalEncoder):
                module.register_forward_hook(lambda _module, _given, encoded: encoded.to(self.dtype))

    def standardised(self, pixels):
        """Pixels [bands, height, width] as the data module hands them over, [1, bands, ...]."""
        from make_model import standardised

        return standardised(self.module, pixels, self.frames)

    def forward(self, images, location=None):
        """What the network gives for standardised images, as float32."""
        import torch

        extras = {}
        if location is not None and "location_coords" in self.data:
            extras["location_coords"] = torch.tensor([location] * len(images), dtype=torch.float32)
        with torch.inference_mode():
            output = self.network(images.to(self.dtype), **extras)
        output = getattr(output, "output", output)
        return (output[-1] if isinstance(output, list | tuple) else output).float()

    def by_tiles(self, pixels, location=None):
        """Outputs [classes, height, width] of an array that whole tiles cover, each tile run alone."""
        height, width = self.tile
        assert pixels.shape[1] % height == 0
        assert pixels.shape[2] % width == 0
        rows = []
        for row in range(0, pixels.shape[1], height):
            tiles = [pixels[:, row : row + height, col : col + width] for col in range(0, pixels.shape[2], width)]
            outputs = [self.forward(self.standardised(tile), location)[0].numpy() for tile in tiles]
            rows.append(np.concatenate(outputs, -1))
        return np.concatenate(rows, -2)


def read(path):
    """The pixels of a raster, nodata as it stands in the file."""
    with rasterio.open(path) as file:
        return file.read()


def location_of(path):
    """Latitude and longitude of a raster's middle: what Prithvi was trained with, in that order."""
    with rasterio.open(path) as file:
        longitude, latitude = file.lnglat()
    return latitude, longitude


def shares(classes, count):
    """The share that each class has of the pixels."""
    return np.bincount(np.asarray(classes).ravel(), minlength=count) / np.asarray(classes).size


def check_mask(mask, logits, dtype="float32", least=0.1, most_unsure=1e-4):
    """Hold a mask [height, width] to logits [classes, height, width] of the plain model.

    Each class must have a tenth of the pixels: of a mask of one class nothing could be told. Every pixel whose class is
    sure must be the same, and all but a few must be sure, in bfloat16 all but a twentieth: how sums are rounded depends
    on the processor, and on how many tiles run together.

    Args:
        mask: class ids.
        logits: float32.
        dtype: in which the model ran.
        least: share that each class must have.
        most_unsure: share of the pixels whose class may be unsure.

    """
    classes = logits.argmax(0)
    assert mask.shape == classes.shape
    assert shares(classes, len(logits)).min() >= least, shares(classes, len(logits))
    second, best = np.sort(logits, axis=0)[-2:]
    sure = best - second > SURE[dtype] * np.ptp(logits)
    assert sure.mean() >= 1 - (0.05 if dtype == "bfloat16" else most_unsure)
    np.testing.assert_array_equal(mask[sure], classes[sure])
