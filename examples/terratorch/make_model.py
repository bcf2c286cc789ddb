"""Command that writes a TerraTorch model folder with random weights: a real architecture, without a download.

    python make_model.py flood --backbone prithvi_eo_v2_tiny_tl --task segmentation --tile 224 --centre scene.tif
    python make_model.py crops --backbone prithvi_eo_v2_300_tl --task segmentation --classes 4 --frames 3
    python make_model.py radar --backbone terramind_v1_tiny --task segmentation

The folder is like the folders that TerraTorch's authors publish: ``config.json`` with "architectures": ["Terratorch"]
and the configuration of network and data module in "pretrained_cfg", and ``model.pt``. The results of such a model mean
nothing, but its speed and the way that results are joined are real. With random weights, nearly all pixels get one
class. ``--centre`` fits the last layer to the covers of a scene, so that each class has at least a tenth of its pixels.
"""

import argparse
import copy
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

TASKS = {
    "segmentation": "SemanticSegmentationTask",
    "regression": "PixelwiseRegressionTask",
    "classification": "ClassificationTask",
    "embedding": "EmbeddingGenerationTask",
}
BANDS = ["BLUE", "GREEN", "RED", "NIR_NARROW", "SWIR_1", "SWIR_2"]
MEANS = [494.905781, 815.239594, 924.335066, 2968.881459, 2634.621962, 1739.579917]
STDS = [284.925432, 357.84876, 575.566823, 896.601013, 951.900334, 921.407808]
"""Means and standard deviations of the bands of HLS, as stored integers."""
S2L2A = [
    "COASTAL_AEROSOL",
    "BLUE",
    "GREEN",
    "RED",
    "RED_EDGE_1",
    "RED_EDGE_2",
    "RED_EDGE_3",
    "NIR_BROAD",
    "NIR_NARROW",
    "WATER_VAPOR",
    "SWIR_1",
    "SWIR_2",
]
S1GRD = ["VV", "VH"]
MODALITY_MEANS = {
    "S2L2A": [1390.5, 1503.3, 1718.2, 1853.9, 2199.1, 2780.0, 2987.0, 3083.2, 3132.2, 3163.0, 2424.9, 1857.6],
    "S1GRD": [-12.599, -20.293],
}
MODALITY_STDS = {
    "S2L2A": [2106.8, 2141.1, 2039.0, 2134.1, 2085.3, 1889.9, 1820.3, 1871.9, 1753.8, 1797.4, 1434.3, 1334.3],
    "S1GRD": [5.195, 5.890],
}
LEAST_SHARE = 0.1
"""Minimum share of the scene's pixels for each class of a model made with ``--centre``."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The properties of a model folder."""

    backbone: str = "prithvi_eo_v2_tiny_tl"
    """Backbone: Prithvi, or TerraMind with Sentinel-2 (S2L2A) and Sentinel-1 (S1GRD)."""
    task: str = "segmentation"
    classes: int = 2
    tile: tuple[int, int] = (224, 224)
    """Height and width of a tile in pixels."""
    frames: int = 1
    """Number of dates in an input."""
    seed: int = 0

    @property
    def terramind(self) -> bool:
        """Whether the model takes several images."""
        return self.backbone.startswith("terramind")

    @property
    def layers(self) -> list[int]:
        """The indices of the backbone's four layers that the decoder sees."""
        depth = {"300": 24, "600": 32, "large": 24}
        count = next((layers for size, layers in depth.items() if f"_{size}" in self.backbone), 12)
        return [count * quarter // 4 - 1 for quarter in (1, 2, 3, 4)]

    @property
    def named(self) -> dict[str, Any]:
        """The network's arguments that all tasks have in common."""
        own = {"backbone_pretrained": False, "backbone": self.backbone}
        if self.terramind:
            return {**own, "backbone_modalities": ["S2L2A", "S1GRD"]}
        frames = {"backbone_num_frames": self.frames} if self.frames > 1 else {}
        return {**own, "backbone_bands": BANDS, **frames}


def input_of(recipe: Recipe) -> dict[str, Any]:
    """Return the input section: the tensors that the model takes."""
    tensor = "torch.Tensor"
    if recipe.terramind:
        shapes = {"S2L2A": [len(S2L2A), *recipe.tile], "S1GRD": [len(S1GRD), *recipe.tile]}
        return {"data": {name: {"type": tensor, "shape": shape} for name, shape in shapes.items()}}
    frames = [recipe.frames] if recipe.frames > 1 else []
    data = {"pixel_values": {"type": tensor, "shape": [len(BANDS), *frames, *recipe.tile]}}
    if recipe.backbone.endswith("_tl"):
        data["location_coords"] = {"type": tensor, "shape": [1, 2]}
    return {"target": "pixel_values", "data": data}


def data_of(recipe: Recipe) -> dict[str, Any]:
    """Return the data section: the data module, which scales and standardises images."""
    arguments: dict[str, Any] = {"batch_size": 16, "num_workers": 0}
    if recipe.terramind:
        name = "GenericMultiModalDataModule"
        bands = {"S2L2A": S2L2A, "S1GRD": S1GRD}
        arguments |= {"task": recipe.task, "modalities": list(bands), "dataset_bands": bands, "output_bands": bands}
        arguments |= {"means": MODALITY_MEANS, "stds": MODALITY_STDS, "num_classes": recipe.classes}
        arguments |= {"rgb_modality": "S2L2A", "rgb_indices": [3, 2, 1], "no_data_replace": 0}
        arguments |= {"data_root": "unused", "label_data_root": "unused"}
    elif recipe.task == "segmentation" and recipe.classes == 2 and recipe.frames == 1:
        name = "Sen1Floods11NonGeoDataModule"
        arguments |= {"data_root": "unused", "bands": BANDS, "constant_scale": 0.0001, "drop_last": True}
        arguments |= {"no_data_replace": 0.0, "no_label_replace": -1}
    else:
        kinds = {"segmentation": "Segmentation", "regression": "PixelwiseRegression"}
        name = f"GenericNonGeo{kinds.get(recipe.task, 'Classification')}DataModule"
        arguments |= {f"{split}_data_root": "unused" for split in ("train", "val", "test")}
        arguments |= {"dataset_bands": BANDS, "output_bands": BANDS, "rgb_indices": [2, 1, 0]}
        arguments |= {"means": MEANS, "stds": STDS, "constant_scale": 1, "no_data_replace": 0}
        arguments |= {"expand_temporal_dimension": True} if recipe.frames > 1 else {}
        arguments |= {"num_classes": recipe.classes} if recipe.task != "regression" else {}
    if not recipe.terramind:
        transform = {"class_path": "albumentations.pytorch.ToTensorV2", "init_args": {"transpose_mask": False}}
        arguments["test_transform"] = [transform]
    return {"class_path": f"terratorch.datamodules.{name}", "init_args": arguments}


def model_of(recipe: Recipe) -> dict[str, Any]:
    """Return the model section: the task with the arguments of its network."""
    network = recipe.named
    if recipe.task == "embedding":
        prithvi = not recipe.terramind
        arguments: dict[str, Any] = {"layers": [-1], "embedding_pooling": "mean", "has_cls": prithvi}
        arguments |= {"model_args": network, "output_dir": "embeddings", "output_format": "parquet"}
        return {"class_path": f"terratorch.tasks.{TASKS[recipe.task]}", "init_args": arguments}
    large = recipe.layers[-1] > 11
    necks: list[dict[str, Any]] = [{"name": "SelectIndices", "indices": recipe.layers}]
    reshape: dict[str, Any] = {"name": "ReshapeTokensToImage"}
    reshape |= {"remove_cls_token": False} if recipe.terramind else {}
    reshape |= {"effective_time_dim": recipe.frames} if recipe.frames > 1 else {}
    if recipe.task == "classification":
        network |= {"decoder": "IdentityDecoder", "necks": [*necks, reshape]}
    elif recipe.terramind:
        network |= {"decoder": "UNetDecoder", "decoder_channels": [256, 128, 64, 32] if large else [64, 32, 16, 8]}
        network["necks"] = [*necks, reshape, {"name": "LearnedInterpolateToPyramidal"}]
    else:
        network |= {"decoder": "UperNetDecoder", "decoder_channels": 256 if large else 64}
        network["necks"] = [*necks, reshape, {"name": "LearnedInterpolateToPyramidal"}]
    network["head_dropout"] = 0.1
    if recipe.task != "regression":
        network["num_classes"] = recipe.classes
    if recipe.task != "classification":
        network["rescale"] = True
    arguments = {"model_args": network, "model_factory": "EncoderDecoderFactory", "freeze_backbone": False}
    arguments |= {"loss": {"regression": "rmse"}.get(recipe.task, "ce"), "ignore_index": -1, "lr": 0.001}
    if recipe.task != "classification":
        height, width = recipe.tile
        sides = {"h_crop": height, "w_crop": width, "h_stride": height, "w_stride": width}
        arguments["tiled_inference_parameters"] = {**sides, "average_patches": False}
    return {"class_path": f"terratorch.tasks.{TASKS[recipe.task]}", "init_args": arguments}


def config_of(recipe: Recipe) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    parts = {"input": input_of(recipe), "data": data_of(recipe), "model": model_of(recipe)}
    return {"architectures": ["Terratorch"], "num_classes": 0, "pretrained_cfg": {"seed_everything": 0, **parts}}


def network_of(pretrained: dict[str, Any]) -> "torch.nn.Module":
    """Return the network that TerraTorch builds from a configuration, in evaluation mode with random weights."""
    from terratorch.registry import MODEL_FACTORY_REGISTRY
    from terratorch.tasks.embedding_generation import EmbeddingGenerationTask

    model = copy.deepcopy(pretrained["model"])
    (task,) = [name for name, kind in TASKS.items() if model["class_path"].endswith(kind)]
    if task == "embedding":
        with tempfile.TemporaryDirectory() as folder:  # the task creates its output folder
            return EmbeddingGenerationTask(**{**model["init_args"], "output_dir": folder}).model.eval()
    factory = MODEL_FACTORY_REGISTRY.build(model["init_args"]["model_factory"])
    return factory.build_model(task=task, **model["init_args"]["model_args"]).eval()


def data_module_of(pretrained: dict[str, Any]) -> Any:
    """Return the data module of a configuration, without its transforms. It reads no data."""
    import terratorch.datamodules

    name = pretrained["data"]["class_path"].rpartition(".")[2]
    arguments = {key: value for key, value in pretrained["data"]["init_args"].items() if key != "test_transform"}
    return getattr(terratorch.datamodules, name)(**arguments)


def standardised(module: Any, tile: "NDArray[np.generic]", frames: int = 1) -> "torch.Tensor":
    """Return a tile [frames * bands, height, width] as a data module passes it to the network: [1, bands, ...].

    As in vllm_mmout, the data module's ``constant_scale`` scales integers. Floating point is reflectance already.
    """
    import numpy as np
    import torch

    scale = np.float32(module.constant_scale) if tile.dtype.kind in "iu" else np.float32(1)
    pixels = torch.from_numpy(tile.astype(np.float32) * scale)
    if frames > 1:  # the tile has the bands of the first date, then of the next date
        pixels = pixels.unflatten(0, (frames, -1)).movedim(0, 1)
    return module.aug({"image": pixels[None]})["image"]


def tiles_of(scene: Path, sides: tuple[int, int]) -> "Iterator[NDArray[np.generic]]":
    """Yield the whole tiles of a scene."""
    import rasterio

    with rasterio.open(scene) as file:
        pixels = file.read()
    height, width = sides
    if pixels.shape[1] < height or pixels.shape[2] < width:
        raise SystemExit(f"{scene} has {pixels.shape[1]} x {pixels.shape[2]} pixels, less than a tile")
    for row in range(0, pixels.shape[1] - height + 1, height):
        for col in range(0, pixels.shape[2] - width + 1, width):
            yield pixels[:, row : row + height, col : col + width]


def covers_of(tiles: "list[NDArray[np.generic]]", classes: int) -> "list[NDArray[np.int64]]":
    """Return a class for each pixel of the tiles, by k-means of the brightness."""
    import numpy as np

    bright = [tile.astype(np.float32).mean(0) for tile in tiles]
    pixels = np.concatenate([tile.ravel() for tile in bright])
    centres = np.quantile(pixels, (np.arange(classes) + 0.5) / classes)
    for _ in range(20):
        nearest = np.searchsorted((centres[1:] + centres[:-1]) / 2, pixels)
        centres = np.array([pixels[nearest == number].mean() for number in range(classes)])
    return [np.searchsorted((centres[1:] + centres[:-1]) / 2, tile) for tile in bright]


def centre(network: "torch.nn.Module", pretrained: dict[str, Any], scene: Path, recipe: Recipe) -> list[float]:
    """Fit the last layer of a segmentation network to the covers of a scene by least squares.

    Returns:
        The share of the scene's pixels for each class after the fit.

    """
    import torch
    from torch.nn.functional import interpolate, one_hot

    module = data_module_of(pretrained)
    last = [layer for layer in network.head.modules() if isinstance(layer, torch.nn.Conv2d)][-1]
    inputs: list[torch.Tensor] = []
    tiles = list(tiles_of(scene, recipe.tile))
    images = [standardised(module, tile, recipe.frames) for tile in tiles]
    with torch.inference_mode():
        hook = last.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0].flatten(1).double()))
        sides = [network(image).output.shape[-2:] for image in images]
        hook.remove()
        ratio = (sides[0].numel() // inputs[0].shape[1]) ** 0.5  # side of the output to side of the last layer
        covers = [one_hot(torch.from_numpy(cover), recipe.classes) for cover in covers_of(tiles, recipe.classes)]
        one_hots = [cover.movedim(-1, 0)[None].float() for cover in covers]
        coarse = [interpolate(cover, scale_factor=1 / ratio, mode="area")[0].flatten(1).double() for cover in one_hots]
        features, targets = torch.cat(inputs, 1), torch.cat(coarse, 1)
        mean, level = features.mean(1, keepdim=True), targets.mean(1, keepdim=True)
        spread = (features - mean) @ (features - mean).T
        ridge = 1e-4 * spread.diagonal().mean() * torch.eye(len(spread))
        weight = torch.linalg.solve(spread + ridge, (features - mean) @ (targets - level).T).T
        last.weight.copy_(weight.reshape(last.weight.shape))
        last.bias.copy_((level - weight @ mean).flatten())
        classes = torch.cat([network(image).output[0].argmax(0).flatten() for image in images])
    return (torch.bincount(classes, minlength=recipe.classes) / len(classes)).tolist()


def make_model(out: Path, recipe: Recipe, scene: Path | None = None) -> Path:
    """Write a model folder and return its path.

    Args:
        out: The folder to create.
        recipe: The properties of the model.
        scene: A raster of the model's bands whose pixels the classes of a segmentation share, or None to keep all
            weights random.

    """
    import torch

    config = config_of(recipe)
    pretrained = config["pretrained_cfg"]
    torch.manual_seed(recipe.seed)
    network = network_of(pretrained)
    if scene is not None:
        shares = centre(network, pretrained, scene, recipe)
        print("shares of the classes:", ", ".join(f"{share:.1%}" for share in shares))
        if min(shares) < LEAST_SHARE:
            raise SystemExit(
                f"a class has {min(shares):.1%} of the pixels of {scene}; try another --seed, or fewer --classes"
            )
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    torch.save(
        {"state_dict": {f"model.{name}": weight for name, weight in network.state_dict().items()}}, out / "model.pt"
    )
    return out


def tile_of(text: str) -> tuple[int, int]:
    """Return height and width of a text such as "224" or "224x448"."""
    sides = [int(side) for side in text.split("x")]
    if len(sides) > 2 or min(sides) < 1:
        raise argparse.ArgumentTypeError("must be a number of pixels, or HEIGHTxWIDTH")
    return sides[0], sides[-1]


def main() -> None:
    """Write the model that the command line describes."""
    parser = argparse.ArgumentParser(description="Make a TerraTorch model folder with random weights.")
    parser.add_argument("out", type=Path, help="folder to create")
    parser.add_argument(
        "--backbone", default="prithvi_eo_v2_tiny_tl", help="such as prithvi_eo_v2_300_tl, terramind_v1_tiny"
    )
    parser.add_argument("--task", choices=TASKS, default="segmentation")
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--tile", type=tile_of, default=(224, 224), help="side in pixels, or HEIGHTxWIDTH")
    parser.add_argument("--frames", type=int, default=1, help="number of dates in an input")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    parser.add_argument("--centre", type=Path, metavar="SCENE", help="scene whose pixels the classes are to share")
    options = parser.parse_args()
    if options.centre is not None and (options.task != "segmentation" or options.backbone.startswith("terramind")):
        parser.error("--centre is for segmentation of one image")
    recipe = Recipe(options.backbone, options.task, options.classes, options.tile, options.frames, options.seed)
    print(make_model(options.out, recipe, options.centre))


if __name__ == "__main__":
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it would look up its newest release online
    warnings.filterwarnings("ignore")
    main()
