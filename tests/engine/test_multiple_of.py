"""Inputs of a network whose sides must be divisible by a number: continued by reflection, results cut back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_folders import engine_here, folder_of
from scenes_for_tests import generate, write
from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, Mosaic, OutputParams
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.models.inputs.mapper import RasterMapper

rasterio = pytest.importorskip("rasterio", reason="it writes the scenes")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]
CONFIG = {
    "bands": ["a", "b"],
    "max_size": 32,
    "multiple_of": 4,
    "mmout": {"output_processor": {"values": "regression", "label": "classification"}},
}


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class SmallUNet(nn.Module):
    """Two levels: joins what it has seen at a half and a quarter of the size with the input."""

    def __init__(self, config):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, pixel_values):
        pixels = pixel_values.float() / 255
        half = self.first(nn.functional.max_pool2d(pixels, 2))
        quarter = self.second(nn.functional.max_pool2d(half, 2))
        half = half + nn.functional.interpolate(quarter, scale_factor=2)
        return pixels + nn.functional.interpolate(half, scale_factor=2)


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class Quarters(nn.Module):
    """Has a result of a quarter of the size: the mean of each 4 x 4 pixels."""

    def __init__(self, config):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, pixel_values):
        return self.factor * nn.functional.avg_pool2d(pixel_values.float(), 4)


@pytest.fixture(scope="module")
def unet(tmp_path_factory):
    """The engine, and the network that it runs."""
    path, weights = folder_of(tmp_path_factory.mktemp("unet"), SmallUNet, **CONFIG)
    network = SmallUNet({})
    network.load_state_dict(weights)
    return engine_here(path), network


def picture(height, width):
    """uint8 [2, height, width]."""
    return np.random.default_rng(height).integers(1, 256, (2, height, width), np.uint8)


def expected(network, array, height, width):
    """What the network gives of an array that numpy continues to a size, cut back."""
    rows, cols = array.shape[1:]
    padded = np.pad(array, [(0, 0), (0, height - rows), (0, width - cols)], mode="reflect")
    with torch.no_grad():
        return network(torch.from_numpy(padded)[None])[0, :, :rows, :cols].numpy()


@pytest.mark.parametrize(
    ("size", "padded"), [((30, 29), (32, 32)), ((13, 18), (16, 20)), ((3, 8), (4, 8)), ((16, 28), (16, 28))], ids=str
)
def test_an_input_is_continued_to_the_next_multiple(unet, size, padded):
    """It goes through in one forward of the next larger size, and the result has its own."""
    llm, network = unet
    array = picture(*size)
    result = generate(llm, array, tile=None, processor="values").array
    np.testing.assert_allclose(result, expected(network, array, *padded), atol=1e-6)


@pytest.mark.parametrize(("options", "wide"), [({"tile": None}, 32), ({"tile": 16, "overlap": 8}, 16)], ids=str)
def test_a_strip_is_continued_along_its_short_side(unet, options, wide):
    """Tiles of a scene are as high as the strip needs, and as wide as they may be."""
    llm, network = unet
    array = picture(5, 100)
    result = generate(llm, array, processor="values", **options).array
    assert result.shape == (2, 5, 100)
    first = expected(network, array[:, :, :wide], max(8, 2 * options.get("overlap", 0)), wide)
    np.testing.assert_allclose(result[:, :, :8], first[:, :, :8], atol=1e-6)


def test_sides_that_no_forward_takes_are_refused(unet):
    """Of a request, of an input that cannot be cut, and of a model's own sizes."""
    llm, _ = unet
    with pytest.raises(OptionError, match=r"tile must be 1 to 32 pixels, divisible by 4, .* got 18"):
        generate(llm, picture(40, 40), tile=18, processor="values")
    with pytest.raises(InputError, match=r"takes 1 to 32 either way, in multiples of 4 in .*; scale it, or cut"):
        llm.generate(picture(18, 18), OutputParams(processor="label"), use_tqdm=False)
    with pytest.raises(OptionError, match=r"max_size must be divisible by multiple_of \(4\), got 30"):
        RasterMapper.from_config(CONFIG | {"max_size": 30})


@pytest.mark.parametrize(("size", "tile"), [((30, 29), None), ((70, 61), 16)], ids=str)
def test_the_part_around_an_area_is_widened_to_multiples(tmp_path, size, tile):
    """A network with a coarser result needs whole pixels of it: the scene has them around a smaller area."""
    llm = engine_here(folder_of(tmp_path / "model", Quarters, **CONFIG)[0])
    array, transform = picture(*size), rasterio.transform.from_origin(500_000, 5_000_000, 10, 10)
    write(tmp_path / "in.tif", array, crs="EPSG:32632", transform=transform)
    corners = [transform * place for place in [(4, 7), (29, 7), (29, 26), (4, 26)]]
    aoi = {"type": "Polygon", "coordinates": [[*corners, corners[0]]]}
    for data in (tmp_path / "in.tif", Mosaic([tmp_path / "in.tif"], "first")):
        options = {"aoi": aoi, "aoi_crs": "EPSG:32632", "processor": "values", "tile": tile}
        result = generate(llm, data, **options)
        assert result.transform[0] == 40
        (col, row), values = ~transform * (result.transform[2], result.transform[5]), result.array[0]
        whole = array[0, int(row) : int(row) + 4 * result.height, int(col) : int(col) + 4 * result.width]
        means = whole.reshape(result.height, 4, result.width, 4).mean(axis=(1, 3))
        valid = ~np.isnan(values)
        np.testing.assert_allclose(values[valid], means[valid], rtol=1e-6)
        assert 20 < valid.sum() <= 35
