"""Other folders than Prithvi with two classes: each gives what the plain PyTorch model gives."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import rasterio
from make_model import Recipe
from plain_terratorch import check_mask, location_of, read

TILE = 224
CLOSE = 1e-4
"""Of the range of the values."""


@pytest.fixture
def tile(scene):
    """The first tile of the scene, int16 [6, 224, 224]."""
    return read(scene)[:, :TILE, :TILE]


@pytest.fixture(scope="module")
def place(scene):
    """Latitude and longitude, as `OutputParams.location`."""
    return location_of(scene)


def close(one, other):
    """Whether values are the same but for the order of additions."""
    np.testing.assert_allclose(one, other, rtol=0, atol=CLOSE * np.ptp(other))


class TestSegmentation:
    def test_four_classes(self, start, model_folder, plain, scene, tmp_path):
        """The file holds the ids 0 to 3, each for a tenth of the pixels at least."""
        from vllm_mmout import OutputParams

        folder, out = model_folder(Recipe(classes=4)), tmp_path / "classes.tif"
        start(folder).generate(str(scene), OutputParams(path=str(out)))
        with rasterio.open(out) as file:
            assert (file.dtypes, file.count) == (("uint8",), 1)
            mask = file.read(1)
        assert set(np.unique(mask)) == {0, 1, 2, 3}
        check_mask(mask, plain(folder).by_tiles(read(scene), location_of(scene)), most_unsure=5e-4)

    def test_tiles_that_are_not_square(self, start, model_folder, plain, scene):
        """``h_crop`` and ``w_crop`` may differ."""
        folder = model_folder(Recipe(tile=(TILE, 2 * TILE)))
        raster = start(folder).generate(str(scene))[0].outputs
        check_mask(raster.read()[0], plain(folder).by_tiles(read(scene), location_of(scene)))

    def test_dates(self, start, model_folder, plain, tile, place):
        """Three dates in one array, one after the other."""
        from vllm_mmout import OutputParams

        folder = model_folder(Recipe(frames=3, classes=4))
        dates = np.concatenate([tile, tile[:, ::-1], tile[:, :, ::-1]])
        result = start(folder, processor="regression").generate(dates, OutputParams(location=place))[0].outputs
        model = plain(folder)
        close(result.array, model.forward(model.standardised(dates), place)[0].numpy())

    def test_several_images(self, start, model_folder, plain, tmp_path):
        """TerraMind takes Sentinel-2 and Sentinel-1, each standardised by its own numbers."""
        import torch
        from make_scene import make_scene

        folder = model_folder(Recipe(backbone="terramind_v1_tiny"))
        files = {
            "S2L2A": make_scene(tmp_path / "s2.tif", TILE, bands=12),
            "S1GRD": make_scene(tmp_path / "s1.tif", TILE, bands=2, dtype="float32"),
        }
        result = start(folder, processor="regression").generate({name: str(file) for name, file in files.items()})
        model = plain(folder)
        images = {name: torch.from_numpy(read(file).astype(np.float32))[None] for name, file in files.items()}
        expected = model.network(model.module.aug({"image": images})["image"]).output[0]
        close(result[0].outputs.array, expected.detach().numpy())


class TestOtherTasks:
    def test_regression(self, start, model_folder, plain, scene, tmp_path):
        """One band of float32, in the numbers that the model gives."""
        from vllm_mmout import OutputParams

        folder, out = model_folder(Recipe(task="regression")), tmp_path / "values.tif"
        start(folder).generate(str(scene), OutputParams(path=str(out)))
        with rasterio.open(out) as file:
            assert (file.dtypes, file.count) == (("float32",), 1)
            values = file.read(1)
        close(values, plain(folder).by_tiles(read(scene), location_of(scene)))

    def test_classification(self, start, model_folder, plain, tile, place):
        """Scores of the classes, the best first."""
        from vllm_mmout import OutputParams

        folder = model_folder(Recipe(task="classification", classes=3))
        classes = start(folder).generate(tile, OutputParams(location=place))[0].outputs.classes
        model = plain(folder)
        scores = model.forward(model.standardised(tile), place)[0].softmax(0).numpy()
        assert [one.id for one in classes] == list(np.argsort(-scores))
        np.testing.assert_allclose([one.score for one in classes], np.sort(scores)[::-1], atol=1e-4)

    def test_embedding(self, start, model_folder, plain, tile, place):
        """One vector."""
        from vllm_mmout import OutputParams

        folder = model_folder(Recipe(task="embedding"))
        vector = start(folder).generate(tile, OutputParams(location=place))[0].outputs
        model = plain(folder)
        close(np.asarray(vector.array).ravel(), model.forward(model.standardised(tile), place)[0].numpy())

    @pytest.mark.parametrize("output_format", ["tiff", "parquet"])
    def test_a_map_of_embeddings(self, start, model_folder, plain, scene, tmp_path, output_format):
        """A scene of four tiles: TerraTorch's feature maps, or its tokens without the class token, row by row."""
        folder = tmp_path / "embedding"
        shutil.copytree(model_folder(Recipe(task="embedding")), folder)
        config = json.loads((folder / "config.json").read_text())
        config["pretrained_cfg"]["model"]["init_args"] |= {"embedding_pooling": None, "output_format": output_format}
        config["mmout"] = {"output_processor": "embedding_grid", "dtype": "float32"}
        (folder / "config.json").write_text(json.dumps(config))
        raster = start(folder).generate(str(scene))[0].outputs
        model, pixels, place, side = plain(folder), read(scene), location_of(scene), TILE // 16
        expected = np.empty((raster.count, 2 * side, 2 * side), np.float32)
        for row, col in np.ndindex(2, 2):
            tile = pixels[:, row * TILE : (row + 1) * TILE, col * TILE : (col + 1) * TILE]
            output = model.forward(model.standardised(tile), place)[0].numpy()
            grid = output if output.ndim == 3 else output[1:].T.reshape(-1, side, side)
            expected[:, row * side : (row + 1) * side, col * side : (col + 1) * side] = grid
        close(raster.array, expected)
        assert raster.transform == (160, 0, 700_000, 0, -160, 4_400_000)
