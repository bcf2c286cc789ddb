"""A vector for each patch of a scene, as a raster that lies on the scene's pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiles_for_tests import pieces, shuffled

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.geo import Georeference, TileGrid
from vllm_mmout.outputs.base import Source
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import EmbeddingGridProcessor, Part, Parts

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = pytest.mark.engine

PATCH, DIM = 4, 6
GRID = TileGrid(37, 42, 16, 8, patch=PATCH)
PLACE = Georeference(crs="EPSG:32614", transform=(10.0, 0.0, 500_000.0, 0.0, -10.0, 4_500_000.0))


def made(output, **options):
    """The raster that a request of a batch of one gets."""
    processor = EmbeddingGridProcessor(patch_size=PATCH, **options)
    return processor.decode(processor.reduce(output, OutputParams())[0], OutputParams())


def features(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scene_of(outputs, valid=None, **options):
    """The raster of a scene whose tiles got these feature maps from the model, in any order."""
    processor = EmbeddingGridProcessor(patch_size=PATCH, dtype="float32", **options)
    params = OutputParams(overlap=GRID.overlap).of_part()
    parts = []
    for index, output in enumerate(outputs):
        window = GRID.window(index)
        raw = processor.reduce(torch.from_numpy(output)[None], params)[0]
        shown = None if valid is None else valid[window.rows, window.cols]
        parts.append(Part(index, window, processor.decode(raw, params), shown))
    source = Source(size=(GRID.height, GRID.width), georeference=PLACE)
    return processor.assemble(Parts(shuffled(parts, 1), grid=GRID, source=source), params)


def test_tokens_lie_row_by_row_behind_the_prefix_tokens():
    """Class tokens and registers are left out, and the other tokens fill the rows of patches."""
    tokens = features(1, 5 + 9, DIM)
    raster = made({"pooler_output": features(1, DIM), "last_hidden_state": tokens}, prefix_tokens=5, dtype="float32")
    np.testing.assert_array_equal(raster.array, tokens[0, 5:].numpy().reshape(3, 3, DIM).transpose(2, 0, 1))
    assert raster.band_names[:2] == ("embedding_0", "embedding_1")


def test_several_dates_are_averaged_or_kept():
    """Tokens of all patches of a date come before those of the next; the metadata says what a band is."""
    tokens = features(1, 1 + 2 * 9, DIM)
    by_date = tokens[0, 1:].numpy().reshape(2, 3, 3, DIM).transpose(0, 3, 1, 2)
    options = {"prefix_tokens": 1, "token_dates": 2, "dtype": "float32"}
    mean, each = made(tokens, **options), made(tokens, dates="each", **options)
    np.testing.assert_allclose(mean.array, by_date.mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(each.array, by_date.reshape(2 * DIM, 3, 3))
    assert mean.metadata["MMOUT_EMBEDDING_DATES"] == "mean of 2 dates"
    assert each.metadata["MMOUT_EMBEDDING_DATES"] == "6 bands for each of 2 dates, the first date first"
    assert (mean.band_names[-1], each.band_names[-1]) == ("embedding_5", "embedding_5_date_2")
    unit = made(tokens, dates="each", normalize=True, **options).array.reshape(2, DIM, 3, 3)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)


@pytest.mark.slow  # imports the model
def test_the_dates_of_a_model_of_transformers_are_where_they_belong():
    """A change of one patch at one date of VideoMAE changes the vector of that patch and date alone."""
    from transformers import VideoMAEConfig, VideoMAEModel

    sizes = {"image_size": 12, "patch_size": PATCH, "num_frames": 3, "tubelet_size": 1, "num_channels": 2}
    layers = {"hidden_size": 8, "num_hidden_layers": 0, "num_attention_heads": 2, "intermediate_size": 8}
    model = VideoMAEModel(VideoMAEConfig(**sizes, **layers)).eval()
    frames = features(1, 3, 2, 12, 12)
    changed = frames.clone()
    changed[0, 1, :, 2 * PATCH :, :PATCH] += 1
    options = {"token_dates": 3, "dates": "each", "dtype": "float32"}
    with torch.no_grad():
        before, after = (made(model(data).last_hidden_state, **options).array for data in (frames, changed))
    differs = (before != after).reshape(3, 8, 3, 3).any(axis=1)
    assert np.argwhere(differs).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(
    ("output", "options", "said"),
    [
        (features(1, 10, DIM), {}, "10 are no square of patches; set the option prefix_tokens"),
        (features(1, 9, DIM), {"token_dates": 2}, "9 are no 2 squares of patches"),
        (features(1, DIM, 3, 3), {"token_dates": 2}, "a feature map without dates, and token_dates is 2"),
        (features(1, DIM), {}, "is made of floating-point tokens"),
        ({"a": features(1, 9, DIM), "b": features(1, 9, DIM)}, {}, "set the option tensor"),
        (7e4 * torch.ones(1, DIM, 2, 2), {}, "float16 cannot hold"),
        (torch.ones(1, DIM, 2, 2), {"dtype": "int8", "scale": 0.001}, "at least 7.87 times as large"),
        (torch.ones(1, DIM, 2, 2), {"dtype": "int8", "scale": [1.0, 2.0]}, "2 entries, the model emits vectors of 6"),
    ],
)
def test_what_is_no_grid_of_vectors_is_refused(output, options, said):
    """A wrong number of tokens, a wrong shape and a component that the dtype cannot hold are errors."""
    with pytest.raises(ReduceError, match=said):
        made(output, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"patch_size": 0},
        {"patch_size": 16, "token_dates": 0},
        {"patch_size": 16, "dates": "first"},
        {"patch_size": [16, 8]},
        {"prefix_tokens": -1},
        {"dtype": "int16"},
        {"scale": 0.1},
        {"dtype": "int8", "scale": 0},
    ],
)
def test_malformed_options_are_refused(options):
    """Each wrong option is an error."""
    with pytest.raises(OptionError, match=r"must be|is for"):
        EmbeddingGridProcessor(**{"patch_size": 8, **options})


def test_config_json_tells_the_patch_unless_an_option_does():
    """The patch size and the prefix tokens are entries of config.json, and options win over them."""
    with pytest.raises(OptionError, match="patch_size is not known"):
        EmbeddingGridProcessor.from_config({}, {})
    config = {"patch_size": [16, 16], "prefix_tokens": 1}
    assert EmbeddingGridProcessor.from_config(config, {}).output_stride == 16
    assert EmbeddingGridProcessor.from_config(config, {"patch_size": 8}).output_stride == 8


@given(st.integers(0, 2**31), st.floats(1e-4, 1e5))
def test_int8_with_a_scale_for_each_pixel_is_within_half_a_step(seed, size):
    """The last band is the exponent of each pixel's scale, and a vector differs from its stored one by half a step."""
    vectors = size * features(1, DIM, 3, 3, seed=seed)
    vectors[0, :, 0, 0], vectors[0, 2, 1, 1] = 0, math.nan
    raster = made(vectors, dtype="int8")
    *steps, exponent = raster.array.astype(np.float64)
    restored, whole = np.array(steps) * 2 ** (exponent / 4), vectors[0].double().numpy()
    step = np.abs(whole).max(axis=0) * 2 ** (1 / 4) / 127
    error = np.abs(restored - whole).max(axis=0)
    known = raster.valid
    assert np.argwhere(~known).tolist() == [[1, 1]]
    assert (error <= step / 2 * (1 + 1e-6))[known].all()
    assert raster.band_names[-1] == "scale_exponent"


def test_each_patch_is_of_the_tile_with_most_context_and_nothing_is_averaged():
    """A patch equals that of the tile whose centre is nearest, whatever the order of the tiles."""
    outputs = [features(DIM, 4, 4, seed=index).numpy() for index in range(len(GRID))]
    raster = scene_of(outputs)
    assert (raster.count, raster.height, raster.width) == (DIM, 10, 11)  # 37 x 42 pixels rounded up to patches
    assert raster.transform == (40.0, 0.0, 500_000.0, 0.0, -40.0, 4_500_000.0)
    tiles = [(GRID.window(index).row // PATCH, GRID.window(index).col // PATCH) for index in range(len(GRID))]
    for row, col in np.ndindex(10, 11):
        inside = [
            (max(abs(row - top - 1.5), abs(col - left - 1.5)), index)
            for index, (top, left) in enumerate(tiles)
            if top <= row < top + 4 and left <= col < left + 4
        ]
        least = min(inside)[0]
        nearest = [outputs[i][:, row - tiles[i][0], col - tiles[i][1]] for far, i in inside if far == least]
        assert any(np.array_equal(raster.array[:, row, col], vector) for vector in nearest)


def test_a_patch_is_nodata_only_if_none_of_its_pixels_is_valid():
    """One valid pixel is enough for a vector, also at the edge, where patches reach beyond the scene."""
    valid = np.zeros((GRID.height, GRID.width), np.bool_)
    valid[9, 13] = valid[36, 41] = valid[36, 0] = True
    raster = scene_of([features(DIM, 4, 4).numpy()] * len(GRID), valid)
    assert np.argwhere(raster.valid).tolist() == [[2, 3], [9, 0], [9, 10]]


def test_a_patch_size_that_the_model_does_not_have_is_refused():
    """A model that makes fewer vectors of a tile than stated would be placed wrongly."""
    with pytest.raises(DecodeError, match=r"makes 2 x 2 pixels of a tile of 16 x 16.*correct patch_size"):
        scene_of([features(DIM, 2, 2).numpy()] * len(GRID))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"tile": 18}, "the nearest sizes are 16 or 20"), ({"tile": 16, "overlap": 2}, "the nearest sizes are 0 or 4")],
)
def test_tiles_that_patches_do_not_divide_are_refused_with_the_nearest_sizes(options, said):
    """Patches of the same place must be the same pixels in all tiles."""
    with pytest.raises(OptionError, match=said):
        TileGrid(100, 100, patch=PATCH, **options)


@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from([0, 4, 8]), st.sampled_from(["shift", "pad"]))
def test_tiles_of_patches_cover_the_scene(height, width, overlap, edge):
    """Tiles begin at multiples of the patch, are all of one size, and hold every pixel of the scene in its place."""
    grid = TileGrid(height, width, 16, overlap, edge, patch=PATCH)
    pixels = np.arange(height * width).reshape(height, width)
    seen = np.zeros_like(pixels, dtype=bool)
    for index, tile in enumerate(pieces(pixels, grid)):
        window = grid.window(index)
        assert tile.shape == grid.fed
        assert window.row % PATCH == window.col % PATCH == 0
        seen[window.rows, window.cols] = True
    assert seen.all()
    assert all(side % PATCH == 0 for side in grid.fed)


@pytest.mark.parametrize(("scale", "scales"), [(None, ()), (0.5, (0.5,) * DIM)])
def test_the_raster_states_how_int8_is_scaled(scale, scales):
    """A scale of each band is the raster's. With a scale of each pixel it has the formula, and no means."""
    raster = made(features(1, DIM, 2, 2), dtype="int8", scale=scale)
    assert (raster.scales, raster.nodata, raster.nearest) == (scales, -128, scale is None)
    assert ("MMOUT_EMBEDDING_SCALE" in raster.metadata) == (scale is None)
    assert raster.metadata["MMOUT_PATCH_SIZE"] == str(PATCH)
