from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scene_generator import make_scene

from vllm_mmout.models.embedded.folders import embedded_model
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import SegmentationProcessor

torch = pytest.importorskip("torch", reason="the network is a torch module")
pytestmark = pytest.mark.engine

HLS = Path(__file__).resolve().parents[2] / "../shared/data/hls_10band_utm14n_224.tif"
CONFIG = json.loads(Path(embedded_model(), "config.json").read_text())
GREEN, SWIR_1 = 1, 4


def network(**config):
    """The network with the shipped weights."""
    from safetensors.torch import load_file

    from vllm_mmout.models.embedded.water_index import WaterIndex

    made = WaterIndex(CONFIG | config)
    made.load_state_dict(load_file(Path(embedded_model(), "model.safetensors")), strict=True)
    return made.requires_grad_(False)


def mndwi_logits(bands, scale):
    """The same network in numpy: float32, operation by operation."""
    reflectance = np.maximum(bands.astype(np.float32) * np.float32(scale), np.float32(0))
    green, swir = reflectance[:, GREEN], reflectance[:, SWIR_1]
    index = (green - swir) / np.maximum(green + swir, np.float32(1e-6))
    return np.stack([np.float32(-8) * index, np.float32(8) * index], axis=1)


def tiles(dtype=np.int16, seed=0, shape=(3, 6, 31, 17)):
    """Reflectance times 10000, some of it below 0, some of it exactly 0 in all bands."""
    values = np.random.default_rng(seed).integers(-300, 9000, shape)
    values[0, :, :4] = 0
    return (np.maximum(values, 0) if np.dtype(dtype).kind == "u" else values).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.int64, np.float32, np.float64, np.uint8])
def test_the_network_is_the_index_bit_by_bit(dtype):
    """Logits equal those of numpy in every bit, whatever the dtype of the file."""
    values = tiles(dtype)
    logits = network()(torch.from_numpy(values))
    assert logits.dtype == torch.float32
    scale = 1.0 if np.dtype(dtype).kind == "f" else 1e-4
    np.testing.assert_array_equal(logits.numpy(), mndwi_logits(values, scale))


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_water_is_where_green_is_brighter_than_swir(dtype):
    """The class is decided by a comparison alone: no rounding moves a pixel."""
    values = tiles(dtype)
    classes = network()(torch.from_numpy(values)).argmax(dim=1).numpy()
    clipped = np.maximum(values, 0)
    np.testing.assert_array_equal(classes, clipped[:, GREEN] > clipped[:, SWIR_1])


def test_a_real_scene_agrees_with_rasterio_and_numpy():
    """On an HLS scene, read by rasterio, mask and logits equal the index computed in numpy, on every pixel."""
    rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
    if not HLS.exists():
        pytest.skip(f"the folder of real rasters is not there: {HLS.parent}")
    with rasterio.open(HLS) as source:
        bands = source.read([2, 3, 4, 5, 6, 7])
    logits = network()(torch.from_numpy(bands)[None])
    np.testing.assert_array_equal(logits.numpy(), mndwi_logits(bands[None], 1.0))
    ids = SegmentationProcessor().reduce(logits, OutputParams())[0].numpy()
    green, swir = np.maximum(bands[[GREEN, SWIR_1]], 0)  # SWIR 1 is below 0 in two pixels, by atmospheric correction
    with np.errstate(invalid="ignore"):  # 0 / 0 where a pixel reflects nothing: not above 0, so land
        textbook = (green - swir) / (green + swir) > 0
    np.testing.assert_array_equal(ids, textbook)
    assert 0 < ids.sum() < ids.size


def test_a_known_index_gives_known_logits():
    """Green 0.3 and SWIR 0.1 make an index of a half (Xu 2006): logits of -4 and 4."""
    pixel = torch.tensor([0.9, 0.3, 0.9, 0.9, 0.1, 0.9]).reshape(1, 6, 1, 1)
    np.testing.assert_allclose(network()(pixel).flatten().numpy(), [-4.0, 4.0], rtol=1e-6)


def test_dtype_decides_the_scale_and_config_may_change_it():
    """Integers are scaled by integer_scale, floats by float_scale, never by what the values look like."""
    darkest = torch.tensor([0, 1, 0, 0, 0, 0]).reshape(1, 6, 1, 1) * 3
    bright = network(integer_scale=1e-7, float_scale=1e-7)
    assert bright(darkest.short())[0, 1] == pytest.approx(8 * 0.3)  # 3e-7 against the least sum of 1e-6
    assert bright(darkest.float())[0, 1] == pytest.approx(8 * 0.3)
    assert network()(darkest.short())[0, 1] == 8
    assert network(float_scale=1e-7)(darkest.short())[0, 1] == 8


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_halves_are_computed_in_float32(half):
    """Input in half precision loses nothing further, nor do weights that were cast to it."""
    values = torch.rand(1, 6, 9, 9, generator=torch.Generator().manual_seed(3)).to(getattr(torch, half))
    expected = mndwi_logits(values.float().numpy(), 1.0)
    for net in (network(), network().to(getattr(torch, half))):
        np.testing.assert_array_equal(net(values).numpy(), expected)


def test_what_reflects_nothing_is_land():
    """0 / 0 is guarded: logits of 0, the first class, an even probability."""
    assert network()(torch.zeros(1, 6, 2, 2)).abs().max() == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -9999.0])
@pytest.mark.parametrize("band", range(6))
def test_a_bad_pixel_does_not_touch_the_others(value, band):
    """What is no observation changes no logit but its own."""
    good = torch.from_numpy(tiles(np.float32) / 10000)
    bad = good.clone()
    bad[1, band, 5, 6] = value
    before, after = network()(good), network()(bad)
    after[1, :, 5, 6] = before[1, :, 5, 6]
    assert torch.equal(before, after)


def test_nan_becomes_nodata():
    """A pixel with NaN in any band has no class."""
    values = torch.full((1, 6, 2, 2), 0.1)
    values[0, 2, 0, 1] = math.nan
    ids = SegmentationProcessor().reduce(network()(values), OutputParams())
    assert ids.tolist() == [[[0, 255], [0, 0]]]


def test_a_batch_gives_what_its_members_give_alone():
    """Tiles that share a forward get the same bits as alone."""
    batch = torch.from_numpy(tiles(seed=4))
    net = network()
    assert torch.equal(net(batch), torch.cat([net(batch[row : row + 1]) for row in range(len(batch))]))


def test_the_shipped_weights_are_those_that_the_module_makes(tmp_path):
    """The file in the package equals, byte for byte, the one that make_weights writes."""
    from make_weights import write_weights

    shipped = Path(embedded_model(), "model.safetensors")
    assert write_weights(tmp_path).read_bytes() == shipped.read_bytes()


def test_the_config_says_what_the_network_is():
    """Bands, classes, scales and processor options of config.json fit the code."""
    assert tuple(CONFIG["bands"]) == make_scene(64, 64).bands
    options = dict(CONFIG["mmout"])
    assert options.pop("output_processor") == SegmentationProcessor.name
    assert options["class_names"] == ["land", "water"]
    ids = SegmentationProcessor(**options).reduce(network()(torch.zeros(1, 6, 3, 3)), OutputParams())
    assert ids.shape == (1, 3, 3)


def test_the_whole_model_stays_under_thirty_lines():
    """What an author has to write is short: the embedded model is the proof, imports and docstrings counted."""
    from vllm_mmout.models.embedded import water_index

    assert len(Path(water_index.__file__).read_text().splitlines()) < 30
