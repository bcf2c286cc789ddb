"""Scenes, inputs that are cut into tiles, through the real engine: each pixel's result is the oracle's."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from scenes_for_tests import TILE, classes, counted, generate, pixels, probabilities, write

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import OpenArray
from vllm_mmout.outputs.stored import StoredRaster

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels()
HEIGHT, WIDTH = ARRAY.shape[1:]


def tiles(size=(HEIGHT, WIDTH), tile=TILE, overlap=0):
    """How many tiles a scene takes."""
    return math.prod(counted(side, tile, overlap) for side in size)


@pytest.mark.parametrize("engine", ["llm", "mp_llm"])
def test_the_mask_equals_the_oracles(engine, request, tmp_path):
    """Pixel for pixel, in this process and across processes."""
    llm = request.getfixturevalue(engine)
    with_tiles = generate(llm, write(tmp_path / "in.tif", ARRAY), overlap=5)
    assert isinstance(with_tiles, StoredRaster)
    np.testing.assert_array_equal(with_tiles.array, classes(ARRAY), strict=True)
    assert 0.3 < classes(ARRAY).mean() < 0.7


def lzw(folder, array=ARRAY):
    """A file whose strips of seven rows suit no tile."""
    return write(folder / "in.tif", array, compress="lzw", predictor=2, blockysize=7, interleave="band")


def stream(path):
    """A file that cannot seek, as a pipe or an answer over the network."""

    class Stream(io.RawIOBase):
        def __init__(self):
            self.source = io.BytesIO(path.read_bytes())

        def readable(self):
            return True

        def readinto(self, buffer):
            return self.source.readinto(buffer)

    return io.BufferedReader(Stream())


def tensor(array):
    """The array in torch."""
    import torch

    return torch.from_numpy(array)


FORMS = {
    "a path": str,
    "a Path": lambda path: path,
    "a URL of a file": Path.as_uri,
    "bytes": Path.read_bytes,
    "a file in memory": lambda path: io.BytesIO(path.read_bytes()),
    "an open file": lambda path: path.open("rb"),
    "a file that cannot seek": stream,
    "an array": lambda _: ARRAY,
    "an array turned round": lambda _: np.ascontiguousarray(ARRAY[:, ::-1, ::-1])[:, ::-1, ::-1],
    "a tensor": lambda _: tensor(ARRAY.astype(np.int16)),
    "a prompt dict": lambda path: {"multi_modal_data": {"image": str(path)}},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_scene_may_come_in_any_form(llm, sent, tmp_path, form):
    """Every form that a small input takes is one of a scene too, and is cut into nine tiles."""
    data = form(lzw(tmp_path))
    try:
        np.testing.assert_array_equal(generate(llm, data).array, classes(ARRAY))
    finally:
        if hasattr(data, "close"):
            data.close()
    assert len(sent) == tiles() == 9


def test_a_picture_may_be_a_scene(llm):
    """A PIL image larger than a tile gives what its array gives."""
    from PIL import Image

    rgb = np.random.default_rng(4).integers(0, 256, (50, 70, 3), np.uint8)
    six = [0, 1, 2, 2, 0, 1]
    expected = classes(np.moveaxis(rgb, -1, 0)[six])
    stored = io.BytesIO()
    Image.fromarray(rgb).save(stored, "PNG")
    for form in (Image.fromarray(rgb), Image.fromarray(rgb).convert("RGBA"), stored.getvalue()):
        np.testing.assert_array_equal(generate(llm, form, indices=six).array, expected)


SIZES = [(75, 90), (32, 33), (33, 32), (1, 80), (80, 1), (2, 65), (31, 97), (64, 64), (65, 31)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("overlap", [0, 1, 2, 7, 16])
def test_scenes_of_any_size(llm, sent, size, overlap):
    """One row, one column, a pixel more than a tile: each pixel has its class, no tile is sent twice or for nothing."""
    array = pixels(5, *size)
    np.testing.assert_array_equal(generate(llm, array, overlap=overlap).array, classes(array))
    assert len(sent) == tiles(size, overlap=overlap)


@pytest.mark.parametrize("size", [(32, 32), (1, 1), (31, 7)], ids=str)
def test_what_fits_a_tile_is_not_cut(llm, sent, size):
    """It goes through the engine as it is, and its result is in memory."""
    array = pixels(5, *size)
    result = generate(llm, array)
    np.testing.assert_array_equal(result.array, classes(array))
    assert not isinstance(result, StoredRaster)
    assert len(sent) == 1


@pytest.mark.parametrize(("size", "count"), [((1025, 16), 3), ((16, 1025), 3), ((1024, 1024), 1)], ids=str)
def test_without_options_the_model_says_what_is_cut(llm, sent, size, count):
    """What one forward takes, 1024 pixels either way, is not cut; a row or column more goes in tiles of 512."""
    array = np.resize(pixels(6, 64, 67), (6, *size))
    (result,) = llm.generate(array, use_tqdm=False)
    np.testing.assert_array_equal(result.outputs.array, classes(array))
    assert len(sent) == count
    assert (result.progress is None) == (count == 1)


@pytest.mark.parametrize("blend", ["cosine", "linear", "none"])
@pytest.mark.parametrize("overlap", [0, 3, 16])
def test_outputs_of_any_kind_with_any_blend(llm, blend, overlap):
    """Probabilities that all tiles agree on are those of one forward, whatever the weights; so is what follows."""
    options = {"blend": blend, "overlap": overlap}
    wanted = probabilities(ARRAY)
    found = generate(llm, ARRAY, output="probabilities", **options)
    np.testing.assert_allclose(found.array, wanted, rtol=0, atol=3e-7)
    assert found.dtype == np.float32
    sure = generate(llm, ARRAY, output="confidence", **options)
    np.testing.assert_allclose(sure.array[0], wanted.max(axis=0), rtol=0, atol=3e-7)
    best = generate(llm, ARRAY, output="classes", **options)
    np.testing.assert_array_equal(best.array, classes(ARRAY), strict=True)


@pytest.fixture(scope="module")
def gaps():
    """Pixels without an observation: single ones, the first two tiles, half of another, a stripe along the edge."""
    gaps = np.random.default_rng(3).random((HEIGHT, WIDTH)) < 0.03
    gaps[:32, :64] = True
    gaps[40:64, 32:50] = True
    gaps[:, -3:] = True
    return gaps


GAPS = {
    "0": (np.uint16, 0, 0, {}),
    "255": (np.uint16, 255, 255, {}),
    "-9999": (np.int16, -9999, -9999, {}),
    "NaN": (np.float32, np.nan, np.nan, {}),
    "NaN that nobody announced": (np.float32, np.nan, None, {}),
    "-9999 in floats": (np.float32, -9999, -9999, {}),
    "0, said by the request": (np.uint16, 0, None, {"nodata": 0}),
    "255, and the file says another": (np.uint16, 255, 7, {"nodata": 255}),
}


def with_gaps(array, gaps, dtype, value):
    """The array in a dtype, each gap in one band alone: that is enough for the model to see nothing true."""
    scale = 1e-4 if np.dtype(dtype).kind == "f" else 1
    dug = (array * scale).astype(dtype)
    band = np.random.default_rng(9).integers(0, 6, array.shape[1:])
    for number in range(6):
        dug[number][gaps & (band == number)] = value
    return dug


@pytest.mark.parametrize("overlap", [0, 8])
@pytest.mark.parametrize(("dtype", "value", "nodata", "options"), GAPS.values(), ids=GAPS)
def test_classes_are_right_whatever_means_nodata(llm, sent, gaps, tmp_path, dtype, value, nodata, options, overlap):
    """A gap of any band is 255 in the mask, which is no class; tiles of nothing but gaps are not sent."""
    dug = with_gaps(ARRAY, gaps, dtype, value)
    path = write(tmp_path / "in.tif", dug, nodata=nodata)
    mask = generate(llm, path, overlap=overlap, path=str(tmp_path / "out.tif"), **options)
    np.testing.assert_array_equal(mask.array, classes(dug, ~gaps))
    with rasterio.open(mask.path) as file:
        assert file.nodata == 255
        np.testing.assert_array_equal(file.dataset_mask() == 0, gaps)
    if not overlap:
        assert len(sent) == tiles() - 2


def test_gaps_of_probabilities_are_nan(llm, gaps):
    """In every band, and nowhere else."""
    dug = with_gaps(ARRAY, gaps, np.int16, -9999)
    for overlap in (0, 8):
        found = generate(llm, dug, nodata=-9999, output="probabilities", overlap=overlap)
        np.testing.assert_array_equal(np.isnan(found.array), np.stack([gaps, gaps]))
        np.testing.assert_allclose(found.array[:, ~gaps], probabilities(dug)[:, ~gaps], rtol=0, atol=3e-7)
        np.testing.assert_array_equal(found.valid, ~gaps)


@pytest.mark.parametrize("output", ["classes", "probabilities", "confidence"])
@pytest.mark.parametrize(("dtype", "value"), [(np.uint16, 0), (np.int16, -9999), (np.float32, np.nan)], ids=str)
def test_a_scene_without_any_observation(llm, sent, tmp_path, dtype, value, output):
    """The result is nodata alone; one tile is sent, as only the model says what its result is like."""
    path = write(tmp_path / "in.tif", np.full((6, 70, 80), value, dtype), nodata=value)
    result = generate(llm, path, output=output, overlap=4)
    wanted = {"classes": ((1, 70, 80), np.uint8, 255), "probabilities": ((2, 70, 80), np.float32, np.nan)}
    shape, dtype_out, nothing = wanted.get(output, ((1, 70, 80), np.float32, np.nan))
    np.testing.assert_array_equal(result.array, np.full(shape, nothing, dtype_out), strict=True)
    assert len(sent) == 1


def test_scenes_and_single_images_in_one_call(llm, sent, tmp_path):
    """Seven scenes among eleven small inputs and four that fail: each result in its place, each right."""
    arrays = [pixels(number, *((40 + 9 * number, 70) if number % 2 else (20, 9 + number))) for number in range(18)]
    inputs = [write(tmp_path / f"{n}.tif", a) if n % 4 == 1 else a for n, a in enumerate(arrays)]
    damaged = tmp_path / "damaged.tif"
    write(damaged, ARRAY, tiled=True, blockxsize=16, blockysize=16, compress="deflate")
    spoiled = bytearray(damaged.read_bytes())
    spoiled[len(spoiled) // 2 : len(spoiled) // 2 + 400] = b"\xff" * 400
    damaged.write_bytes(spoiled)
    bad = {2: damaged, 7: tmp_path / "missing.tif", 11: np.zeros((5, 90, 90), np.uint16), 19: b"no image"}
    for place, data in sorted(bad.items()):
        inputs.insert(place, data)

    results = llm.generate(inputs, OutputParams(tile=TILE, overlap=4), use_tqdm=False)
    assert [place for place, result in enumerate(results) if result.error is not None] == sorted(bad)
    good = [result for result in results if result.error is None]
    for array, result in zip(arrays, good, strict=True):
        np.testing.assert_array_equal(result.outputs.array, classes(array))
        assert isinstance(result.outputs, StoredRaster) == (max(array.shape[1:]) > TILE)
    assert all(isinstance(results[place].error, InputError) for place in bad)
    assert "damaged.tif" in str(results[2].error)
    assert f"of {tiles(overlap=4)} (rows " in str(results[2].error)
    with pytest.raises(InputError, match="of 12 "):
        generate(llm, damaged, overlap=4)
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize("form", ["a file in memory", "an open file", "a file that cannot seek"])
def test_more_files_than_are_cut_at_once(llm, tmp_path, form):
    """Open files whose scenes wait for others are read from their start when their turn comes."""
    arrays = [pixels(number, 40, 50) for number in range(12)]
    paths = [write(tmp_path / f"{number}.tif", array) for number, array in enumerate(arrays)]
    files = [FORMS[form](path) for path in paths]
    try:
        results = llm.generate(files, OutputParams(tile=TILE), use_tqdm=False)
    finally:
        for file in files:
            file.close()
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result.outputs.array, classes(array))


REFUSED = {
    "a processor that joins nothing": ({"processor": "tensor"}, ["'tensor' cannot join tiles", "leave tile=32 out"]),
    "one of two": ({"processor": ["segmentation", "image"]}, ["'image' cannot join tiles"]),
    "a tile larger than a forward": ({"tile": 1025}, ["tile must be 1 to 1024", "1025"]),
}


@pytest.mark.parametrize(("options", "says"), REFUSED.values(), ids=REFUSED)
def test_what_a_scene_cannot_have_is_refused(llm, sent, monkeypatch, options, says):
    """The value and the remedy are named, no pixel is read, and nothing reaches the engine."""
    monkeypatch.setattr(OpenArray, "_arrays", None)
    with pytest.raises(OptionError) as caught:
        generate(llm, ARRAY, **options)
    assert [part for part in says if part not in str(caught.value)] == []
    assert sent == []


def test_an_overlap_over_half_of_the_models_tile_is_refused(llm, sent):
    """Of the tile that the model says, 512 pixels, as of one that the request says."""
    with pytest.raises(OptionError, match="at most half a tile, got 257 for tiles of 512"):
        llm.generate(np.ones((6, 1025, 8), np.uint16), OutputParams(overlap=257), use_tqdm=False)
    with pytest.raises(OptionError, match="at most half a tile, got 17 for tile=32"):
        OutputParams(tile=32, overlap=17)
    assert sent == []
