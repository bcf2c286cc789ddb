"""Scenes through a model that takes tiles of one size alone: reflection, blending and several results, by numpy."""

from __future__ import annotations

import numpy as np
import pytest
from model_folders import engine_here, folder_of
from padded_model import CONFIG, SIDE, SummingNet
from scenes_for_tests import generate

from vllm_mmout.errors import InputError, OptionError

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def summing(tmp_path_factory):
    """An engine of the model, in this process."""
    path, _ = folder_of(tmp_path_factory.mktemp("summing"), SummingNet, **CONFIG)
    return engine_here(path)


def picture(height, width, seed=0):
    """uint8 [3, height, width]."""
    return np.random.default_rng(seed).integers(0, 256, (3, height, width), np.uint8)


def starts(size, overlap):
    """First pixels of the tiles along an axis, the last hanging over."""
    return [0] if size <= SIDE else list(range(0, size - overlap, SIDE - overlap))


def ramp(distance, shared, blend):
    """How much a tile counts so many pixels into what it shares: a quarter nothing, half a ramp, a quarter all."""
    along = np.clip((distance - shared / 4) / (shared / 2), 0, 1)
    return {"linear": along, "cosine": (1 - np.cos(np.pi * along)) / 2, "none": distance > shared // 2}[blend]


def weights(size, overlap, blend):
    """[tiles, size]: what each tile counts at each pixel of an axis."""
    firsts = starts(size, overlap)
    rows = np.zeros((len(firsts), size))
    centres = np.arange(size) + 0.5
    for number, first in enumerate(firsts):
        rows[number, first : first + SIDE] = 1.0
        if overlap and first > 0:
            rows[number] *= ramp(centres - first, overlap, blend)
        if overlap and first != firsts[-1]:
            rows[number] *= 1 - ramp(centres - (first + SIDE - overlap), overlap, blend)
    np.testing.assert_allclose(rows.sum(axis=0), 1, atol=1e-12)
    return rows


def expected(array, overlap=0, blend="none"):
    """float64 [4, height, width]: what the model gives of a scene, each tile continued by numpy's reflection."""
    height, width = array.shape[1:]
    across = zip(starts(width, overlap), weights(width, overlap, blend), strict=True)
    columns = list(across)
    sums = np.zeros((height, width))
    for row, down in zip(starts(height, overlap), weights(height, overlap, blend), strict=True):
        for col, right in columns:
            tile = array[:, row : row + SIDE, col : col + SIDE]
            missing = [(0, 0), (0, SIDE - tile.shape[1]), (0, SIDE - tile.shape[2])]
            sums += np.outer(down, right) * (np.pad(tile, missing, mode="reflect").sum(dtype=np.float64) / 1024)
    return np.concatenate([array, sums[np.newaxis]])


SIZES = [(1, 1), (2, 1), (5, 7), (1, 40), (40, 1), (15, 16), (16, 17), (17, 33), (3, 50), (32, 48), (37, 41)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tiles_are_continued_by_reflection(summing, size):
    """What a tile lacks is mirrored, also again and again, as numpy does it; the result has the scene's size."""
    array = picture(*size)
    result = generate(summing, array, tile=None)
    np.testing.assert_array_equal(result.array, expected(array).astype(np.float32), strict=True)


def test_what_fits_is_neither_cut_nor_continued(summing):
    """A tile of the model's size is one request like any other."""
    (result,) = summing.generate(picture(SIDE, SIDE), use_tqdm=False)
    assert result.progress is None
    np.testing.assert_array_equal(result.outputs.array, expected(picture(SIDE, SIDE)).astype(np.float32))


@pytest.mark.parametrize("blend", ["cosine", "linear", "none"])
@pytest.mark.parametrize("overlap", [1, 4, 6, 8])
def test_tiles_are_blended_as_told(summing, overlap, blend):
    """Where tiles of different sums overlap, the result is their mean, weighted as the options say."""
    array = picture(38, 45, seed=overlap)
    result = generate(summing, array, tile=None, overlap=overlap, blend=blend).array
    wanted = expected(array, overlap, blend)
    np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=0)
    np.testing.assert_array_equal(result[:3], array)
    assert np.abs(wanted - expected(array, overlap, "none")).max() > 1 or blend == "none" or overlap == 1


def test_nothing_reads_as_zero(summing):
    """A pixel without an observation is 0 to the model, mirrored or not, and NaN in the result."""
    array = picture(21, 19).clip(1)
    array[1, 4:9, 12:18] = 0
    gaps = np.zeros((21, 19), bool)
    gaps[4:9, 12:18] = True
    result = generate(summing, array, tile=None, nodata=0)
    wanted = expected(np.where(gaps, np.uint8(0), array)).astype(np.float32)
    np.testing.assert_array_equal(result.array, np.where(gaps, np.float32(np.nan), wanted))


def test_a_picture_is_a_scene(summing):
    """PIL's image gives what its array gives; alpha is left out."""
    from PIL import Image

    array = picture(30, 41)
    image = Image.fromarray(np.moveaxis(array, 0, -1))
    for form in (image, image.convert("RGBA")):
        np.testing.assert_array_equal(generate(summing, form, tile=None).array, expected(array).astype(np.float32))


@pytest.mark.parametrize("names", [("values", "classes"), ("classes", "values"), ("classes",)], ids="-".join)
@pytest.mark.parametrize("path", [False, True], ids=["temporary", "in a folder"])
def test_several_processors_of_one_scene(summing, tmp_path, names, path):
    """A dict in the order asked, each result right, and in a file of its own."""
    array = picture(29, 50)
    wanted = expected(array)
    options = {"path": f"{tmp_path}/out/"} if path else {}
    results = generate(summing, array, tile=None, processor=names, **options)
    assert list(results) == list(names)
    np.testing.assert_array_equal(results["classes"].array, wanted.argmax(axis=0)[np.newaxis].astype(np.uint8))
    if "values" in names:
        np.testing.assert_array_equal(results["values"].array, wanted.astype(np.float32))
    made = sorted(file.name for file in tmp_path.rglob("*.tif"))
    assert made == (sorted(f"output-{name}.tif" for name in names) if path else [])
    assert [result.metadata["MMOUT_PROCESSOR"] for result in results.values()] == list(names)


def test_classes_of_blended_probabilities(summing):
    """The softmax of each tile is averaged, then the best class is chosen: elsewhere than where tiles are cut."""
    array = np.full((3, 16, 40), 2, np.uint8)
    array[:, :, :8], array[:, :, 16:] = 11, 0  # the first tile is sure of class 3, its neighbour knows little
    columns = list(zip(starts(40, 8), weights(40, 8, "cosine"), strict=True))
    mean = np.zeros((4, 16, 40))
    for col, right in columns:
        tile = array[:, :, col : col + SIDE]
        logits = expected(np.pad(tile, [(0, 0), (0, 0), (0, SIDE - tile.shape[2])], mode="reflect"))
        powers = np.exp(logits)[:, :, : tile.shape[2]]
        mean[:, :, col : col + SIDE] += right[col : col + SIDE] * (powers / powers.sum(axis=0))
    options = {"tile": None, "overlap": 8, "processor": "classes"}
    found = generate(summing, array, output="probabilities", **options)
    np.testing.assert_allclose(found.array, mean, rtol=0, atol=1e-6)
    best = generate(summing, array, **options).array[0]
    np.testing.assert_array_equal(best, found.array.argmax(axis=0))
    assert (best != generate(summing, array, blend="none", **options).array[0]).any()


@pytest.mark.parametrize("tile", [15, 17])
def test_tiles_of_another_size_are_refused(summing, tile):
    """The sizes that the model takes are named."""
    with pytest.raises(OptionError, match=f"tile must be 16 to 16 pixels.*got {tile}"):
        generate(summing, picture(40, 40), tile=tile)


def test_a_processor_that_cannot_join_is_refused(summing):
    """Of two picks the one that gives one answer an input; what to do depends on whether it is too large or small."""
    for side, remedy in ((40, "window="), (10, "scale the input up")):
        with pytest.raises(InputError, match=f"{side} x {side} pixels.*'label' cannot join tiles.*{remedy}"):
            generate(summing, picture(side, side), tile=None, processor=["values", "label"])
