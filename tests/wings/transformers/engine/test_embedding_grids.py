"""Backbones of transformers that give a vector for each patch of a raster, compared with transformers itself."""

from __future__ import annotations

import importlib
import json
import shlex

import numpy as np
import pytest
import rasterio
import torch
from model_folders import engine_here, weights_of, write_folder
from pages import ROOT, blocks, commands
from rasterio.transform import Affine
from small_heads import SQUARE, VIT, processor_of, saved

from vllm_mmout import OutputParams
from vllm_mmout.errors import OptionError
from vllm_mmout.geo import TileGrid, reflected
from vllm_mmout.wings.transformers.patches import makes_patches, patches_of

pytestmark = pytest.mark.engine
PLACE = {"crs": "EPSG:32614", "transform": Affine(10, 0, 500_000, 0, -10, 4_500_000)}
SIZE = (150, 203)
CROPPED = {"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}}
BACKBONES = {
    "ViTModel": (VIT | {"image_size": 64, "patch_size": 16}, ("vit", {"size": SQUARE}), 64, 16, 1),
    "Dinov2WithRegistersModel": (
        VIT | {"image_size": 56, "patch_size": 14, "num_register_tokens": 4},
        ("bit", CROPPED),
        56,
        14,
        5,
    ),
}
"""Architecture -> configuration, image processor, side of tiles, side of patches, tokens before the patches."""


@pytest.fixture(scope="module")
def pixels():
    """A picture of waves with a hole of nodata, which covers whole patches."""
    rows, cols = np.mgrid[: SIZE[0], : SIZE[1]]
    waves = np.stack([128 + 100 * np.sin(rows / span + cols / (span + 7)) for span in (9, 17, 31)]).astype(np.uint8)
    waves[:, 40:80, 90:130] = 0
    return waves


@pytest.fixture(scope="module")
def scene(tmp_path_factory, pixels):
    """The picture as a GeoTIFF."""
    file = tmp_path_factory.mktemp("scene") / "scene.tif"
    profile = {"driver": "GTiff", "count": 3, "height": SIZE[0], "width": SIZE[1], "dtype": "uint8", "nodata": 0}
    with rasterio.open(file, "w", **profile, **PLACE) as dataset:
        dataset.write(pixels)
    return file


@pytest.fixture(scope="module", params=BACKBONES)
def backbone(request, tmp_path_factory):
    """An engine, the network and its image processor, and the sides of tiles and patches."""
    import transformers

    entries, made_with, tile, patch, prefix = BACKBONES[request.param]
    cls = getattr(transformers, request.param)
    torch.manual_seed(3)
    model, processor = cls(cls.config_class(**entries)).eval(), processor_of(*made_with)
    folder = saved(tmp_path_factory.mktemp("folder"), model, processor)
    options = {"output_processor": "embedding_grid", "dtype": "float32"}
    return (
        engine_here(folder, max_num_seqs=4, additional_config={"mmout": options}),
        model,
        processor,
        tile,
        patch,
        prefix,
    )


def test_a_scene_has_the_vectors_that_transformers_gives_its_tiles(backbone, scene, pixels):
    """Each patch is that of a tile at full resolution. The grid begins where the scene does, and covers all of it."""
    llm, model, processor, tile, patch, prefix = backbone
    (result,) = llm.generate([str(scene)], OutputParams(overlap=2 * patch), use_tqdm=False)
    raster = result.outputs
    height, width = (-(-side // patch) for side in SIZE)
    assert (raster.count, raster.height, raster.width) == (16, height, width)
    assert raster.transform == (10 * patch, 0, 500_000, 0, -10 * patch, 4_500_000)

    vectors: dict[tuple[int, int], list[np.ndarray]] = {}
    grid = TileGrid(*SIZE, tile, 2 * patch, patch=patch)
    for index in range(len(grid)):
        window = grid.window(index)
        picture = np.moveaxis(reflected(pixels[:, window.rows, window.cols], grid.padding(index)), 0, 2)
        features = processor(picture, do_resize=False, do_center_crop=False, return_tensors="pt")
        with torch.no_grad():
            tokens = model(features.pixel_values).last_hidden_state[0, prefix:].numpy()
        for place, vector in enumerate(tokens):
            row, col = divmod(place, tile // patch)
            vectors.setdefault((window.row // patch + row, window.col // patch + col), []).append(vector)
    array, hidden = raster.array, []
    for row, col in np.ndindex(height, width):
        seen = pixels[0, row * patch : (row + 1) * patch, col * patch : (col + 1) * patch]
        if seen.any():
            assert min(np.abs(array[:, row, col] - vector).max() for vector in vectors[row, col]) < 1e-6
        else:
            hidden.append((row, col))
    assert hidden
    assert np.argwhere(np.isnan(array).all(axis=0)).tolist() == [list(place) for place in hidden]


def test_a_picture_is_not_scaled_to_the_size_that_the_model_takes(backbone, pixels):
    """A small picture without a place fills a part of one tile, and has a vector for each of its patches."""
    llm, *_, patch, _ = backbone
    (result,) = llm.generate([pixels[:, :30, :41]], use_tqdm=False)
    assert (result.outputs.height, result.outputs.width) == (-(-30 // patch), -(-41 // patch))


@pytest.mark.parametrize("option", ["tile", "overlap"])
def test_tiles_that_would_be_scaled_are_refused(backbone, scene, option):
    """The model's own tile is the only one without scaling, and an overlap must be of whole patches."""
    llm, *_, patch, _ = backbone
    sizes = rf"nearest sizes are 0 or {patch}" if option == "overlap" else "tile must be"
    with pytest.raises(OptionError, match=sizes):
        llm.generate(str(scene), OutputParams(**{option: 8}), use_tqdm=False)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"model_type": "deit", "patch_size": 16}, {"patch_size": 16, "prefix_tokens": 2}),
        ({"model_type": "swin", "patch_size": 4, "depths": [2, 2, 6, 2]}, {"patch_size": 32}),
        ({"model_type": "resnet"}, {}),
    ],
)
def test_the_patches_are_read_from_the_configuration(config, options):
    """What a configuration does not tell is left for the user to say."""
    assert patches_of(config) == options


def test_the_engine_argument_or_config_json_asks_for_patches():
    """The engine argument wins over the table of config.json."""
    table = {"mmout": {"output_processor": "embedding_grid"}}
    assert makes_patches(table, None)
    assert not makes_patches(table, "embedding")
    assert makes_patches({}, {"map": {"output_processor": "embedding_grid"}, "vector": "embedding"})


PAGE = blocks(ROOT / "docs/embeddings.md")
START, READ, OWN = [block.text for block in PAGE if block.kind == "python"]
INT8, OWN_CONFIG = [json.loads(block.text) for block in PAGE if block.kind == "json"]
(COMMAND,) = [command for block in PAGE if block.kind == "shell" for command, _ in commands(block)]


def test_the_page_maps_a_folder_of_transformers(tmp_path, scene, monkeypatch, capsys):
    """Code and command of docs/embeddings.md write the same file. Vectors are read from int8 as the page says."""
    import transformers

    from vllm_mmout.cli import main

    monkeypatch.chdir(tmp_path)
    entries, made_with, *_ = BACKBONES["Dinov2WithRegistersModel"]
    model = transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(**entries))
    saved(tmp_path / "dinov2", model, processor_of(*made_with))
    (tmp_path / "scene.tif").write_bytes(scene.read_bytes())
    text = START.removeprefix("from vllm import LLM\n")
    exec(compile(text, "docs/embeddings.md", "exec"), {"LLM": engine_here})  # noqa: S102 - the page is our own
    assert "16 11 15 (140.0, 0.0, 500000.0" in capsys.readouterr().out
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    assert main(shlex.split(COMMAND)[1:]) == 0
    with rasterio.open("out/scene.tif") as by_command, rasterio.open("embeddings.tif") as by_python:
        np.testing.assert_array_equal(by_command.read(), by_python.read())
        whole = by_python.read()

    options = OutputParams(overlap=28, path="embeddings-int8.tif")
    engine_here("dinov2", additional_config=INT8).generate("scene.tif", options, use_tqdm=False)
    names: dict[str, np.ndarray] = {}
    exec(compile(READ, "docs/embeddings.md", "exec"), names)  # noqa: S102 - the page is our own
    valid, vectors = names["valid"], names["vectors"]
    np.testing.assert_array_equal(valid, ~np.isnan(whole[0]))
    unit = whole / np.linalg.norm(whole, axis=0)
    np.testing.assert_allclose(vectors[:, valid], unit[:, valid], atol=0.006)


def test_the_page_maps_a_backbone_of_ones_own(tmp_path, monkeypatch):
    """A module with the decorators, and a folder with the entry ``patch_size``, need no more code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "backbone.py").write_text(OWN)
    backbone = importlib.import_module("backbone").Backbone
    folder = write_folder(tmp_path / "own", OWN_CONFIG, weights := weights_of(backbone, OWN_CONFIG))
    pixels = np.random.default_rng(0).integers(0, 9000, (2, 96, 130), np.int16)
    grid = engine_here(folder).generate(pixels, use_tqdm=False)[0].outputs
    network = backbone(OWN_CONFIG)
    network.load_state_dict(weights)
    with torch.no_grad():
        expected = network(torch.from_numpy(pixels)[None])[0].numpy()
    assert (grid.height, grid.width) == (6, 9)
    np.testing.assert_allclose(grid.array[:, :, :8], expected, atol=2e-3)
