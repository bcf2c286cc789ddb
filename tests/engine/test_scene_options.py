"""How a scene is read: bands, window, scale and offset, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from scenes_for_tests import TILE, classes, generate, pixels, write

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, OptionError

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
NAMES = ["coast", "blue", "green", "red", "NIR", "SWIR 1", "SWIR 2", "cirrus"]
EIGHT = np.concatenate([pixels(3), pixels(4)[:2]])
ORDER = (2, 8, 4, 5, 1, 7)
"""Bands from 1; the model's green and SWIR 1 are the file's last and first."""

CHOICES = {
    "numbers": {"bands": ORDER},
    "names": {"bands": [NAMES[band - 1] for band in ORDER]},
    "both": {"bands": [2, "cirrus", 4, "NIR", "coast", 7]},
    "indices": {"indices": [band - 1 for band in ORDER]},
}


@pytest.mark.parametrize("interleave", ["band", "pixel"])
@pytest.mark.parametrize("options", CHOICES.values(), ids=CHOICES)
def test_bands_are_chosen_in_every_tile(llm, tmp_path, interleave, options):
    """Numbers from 1, names, and indices from 0 name the same bands, in any order."""
    path = write(tmp_path / "in.tif", EIGHT, descriptions=NAMES, interleave=interleave)
    with rasterio.open(path) as file:
        chosen = file.read(ORDER)
    np.testing.assert_array_equal(generate(llm, path, **options).array, classes(chosen))
    assert (classes(chosen) != classes(EIGHT[:6])).any()


def test_a_gap_of_a_band_that_is_not_fed_masks_nothing(llm, tmp_path):
    """A tile whose only observations are those of the chosen bands is sent."""
    array = EIGHT.copy()
    array[[2, 5]] = 0
    path = write(tmp_path / "in.tif", array, nodata=0)
    np.testing.assert_array_equal(generate(llm, path, bands=ORDER).array, classes(array[[b - 1 for b in ORDER]]))


def test_a_file_that_names_the_models_bands_is_read_in_its_order(llm, tmp_path):
    """Without a choice, names decide, as for an input of one forward."""
    names = ["SWIR 2", "SWIR 1", "narrow NIR", "red", "green", "blue"]
    path = write(tmp_path / "in.tif", pixels(7), descriptions=names)
    np.testing.assert_array_equal(generate(llm, path).array, classes(pixels(7)[::-1]))


def test_a_mask_band_hides_pixels(llm, tmp_path):
    """A file's own mask says where nothing was observed, tile by tile."""
    seen = np.random.default_rng(5).random(EIGHT.shape[1:]) < 0.9
    path = write(tmp_path / "in.tif", EIGHT, tiled=True, blockxsize=16, blockysize=16)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(seen)
    chosen = EIGHT[[band - 1 for band in ORDER]]
    np.testing.assert_array_equal(generate(llm, path, bands=ORDER).array, classes(chosen, seen))


WINDOWS = [(0, 0, 75, 90), (11, 3, 64, 33), (74, 0, 1, 90), (0, 89, 75, 1), (10, 20, 32, 32), (1, 1, 5, 6)]


@pytest.mark.parametrize("layout", [{}, {"tiled": True, "blockxsize": 16, "blockysize": 16, "compress": "deflate"}])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_window_is_that_part_alone(llm, sent, tmp_path, window, layout):
    """The result is that of the part that numpy cuts out; tiles are counted from its corner."""
    array = pixels(8)
    row, col, height, width = window
    part = array[:, row : row + height, col : col + width]
    path = write(tmp_path / "in.tif", array, **layout)
    np.testing.assert_array_equal(generate(llm, path, window=window).array, classes(part))
    assert len(sent) == -(-height // TILE) * -(-width // TILE)
    np.testing.assert_array_equal(generate(llm, array, window=window, overlap=6).array, classes(part))


SCALES = {
    "one number each": {"scale": 2e-4, "offset": -0.9},
    "a scale alone": {"scale": [1, 1.25, 1, 1, 1, 1]},
    "an offset alone": {"offset": -4500.0},
    "one a band": {"scale": [1, 1e-4, 1, 1, 3e-4, 1], "offset": [0, 0.1, 0, 0, -0.7, 5]},
}


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float64"])
@pytest.mark.parametrize("options", SCALES.values(), ids=SCALES)
def test_values_are_scaled_in_every_tile(llm, dtype, options):
    """The model sees float32: value * scale + offset, as numpy computes it; gaps stay gaps."""
    array = pixels(9).astype(dtype)
    array[3, 20:60, 10:50] = 7
    scale, offset = (
        np.asarray(options.get(name, default), np.float32).reshape(-1, 1, 1)
        for name, default in (("scale", 1), ("offset", 0))
    )
    seen = array.astype(np.float32) * scale + offset
    wanted = classes(seen, array[3] != 7)
    np.testing.assert_array_equal(generate(llm, array, nodata=7, **options).array, wanted)
    assert set(np.unique(wanted)) == {0, 1, 255}
    assert (wanted != classes(array.astype(np.float32), array[3] != 7)).any()


def test_a_scaled_scene_is_what_it_is_in_one_forward(llm):
    """Logits depend on the scale where they are clipped: cutting changes nothing of that."""
    options = {"scale": 1e-4, "offset": -0.45, "output": "probabilities"}
    cut, whole = (generate(llm, pixels(10), tile=tile, **options).array for tile in (TILE, 512))
    np.testing.assert_allclose(cut, whole, rtol=0, atol=3e-7)


REFUSED = {
    "a window beyond the input": ({"window": (70, 0, 6, 9)}, InputError, ["rows 70 to 75", "75 rows, 90 columns"]),
    "scales for other bands": ({"scale": [1.0, 2.0]}, InputError, ["scale has 2 numbers for 6 bands"]),
    "offsets for other bands": ({"offset": [1.0] * 7}, InputError, ["offset has 7 numbers for 6 bands"]),
    "a band that is not there": ({"bands": [1, 2, 3, 4, 5, 9]}, InputError, ["band 9"]),
    "too few bands": ({"indices": [0, 1]}, InputError, ["indices chooses 2 bands", "takes 6"]),
    "an overlap of more than half a tile": (
        {"tile": None, "overlap": 2**31 - 1},
        OptionError,
        ["overlap must be at most"],
    ),
    "an output that is not there": ({"output": "clases"}, OptionError, ["classes, probabilities, confidence"]),
}


@pytest.mark.parametrize(("options", "kind", "says"), REFUSED.values(), ids=REFUSED)
def test_what_a_scene_has_not_is_refused(llm, sent, options, kind, says):
    """Before anything reaches the engine; in a list it is its own place's error."""
    with pytest.raises(kind) as caught:
        generate(llm, pixels(), **options)
    assert [part for part in says if part not in str(caught.value)] == []
    assert sent == []
    if kind is InputError:
        params = [OutputParams(tile=TILE), OutputParams(tile=TILE, **options)]
        good, bad = llm.generate([pixels(), pixels()], params, use_tqdm=False)
        np.testing.assert_array_equal(good.outputs.array, classes(pixels()))
        assert str(bad.error) == str(caught.value)


@pytest.mark.parametrize("height", [20, 1100], ids=["one forward", "several tiles"])
def test_the_overlap_is_that_of_the_models_tiles(llm, sent, height):
    """Half a tile of the model's own is the most, also for an input that has no tile borders."""
    most = llm.llm_engine.output_processor.binding.inputs.rasters.tile_size // 2
    generate(llm, pixels(height=height), tile=None, overlap=most)
    before = len(sent)
    with pytest.raises(OptionError, match=f"overlap must be at most half a tile, got {most + 1}") as caught:
        generate(llm, pixels(height=height), tile=None, overlap=most + 1)
    assert caught.value.param == "overlap"
    assert len(sent) == before
