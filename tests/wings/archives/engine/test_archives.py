"""Archives of torch.export: each gives what the network gave before it was exported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from exported_archives import Bands, Dated, LastBands, Options, Pair, Words, archive, item
from model_folders import engine_elsewhere, engine_here
from rasterio.transform import Affine

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, OptionError

pytestmark = pytest.mark.engine
RANDOM = np.random.default_rng(8)
CLASSES = {"mmout": {"output_processor": "segmentation", "class_names": ["other", "field", "edge"]}}
ANY = torch.export.Dim.AUTO
PLACE = Affine(10, 0, 500_000, 0, -10, 4_500_000)
IMAGE = torch.rand(2, 4, 64, 64)


def image(*size, dtype=np.float32):
    return (RANDOM.random((4, *size)) * (10_000 if dtype != np.float32 else 1)).astype(dtype)


def plain(network, *inputs):
    with torch.inference_mode():
        return network(*(torch.as_tensor(one)[None] for one in inputs))


def generated(llm, inputs, **options):
    return [one.outputs for one in llm.generate(inputs, OutputParams(**options), use_tqdm=False)]


@pytest.mark.parametrize(
    ("batch", "count"), [(ANY, 3), (None, 3), (torch.export.Dim("n", min=3, max=4), 6)], ids=["any", "two", "3 to 4"]
)
def test_any_batch_that_it_was_exported_with(batch, count, tmp_path):
    """Any number of requests in a step, alone too; what the program lacks is filled up."""
    example = IMAGE if batch is None else torch.rand(3, 4, 64, 64)
    network = archive(tmp_path, Bands, example, batch=batch, config=CLASSES)
    llm = engine_here(tmp_path, max_num_seqs=6)
    images = [image(64, 64) for _ in range(count)]
    found = generated(llm, images) + generated(llm, images[:1])
    for one, result in zip([*images, images[0]], found, strict=True):
        np.testing.assert_array_equal(result.array[0], plain(network, one)[0].argmax(0))
        assert result.class_names == ("other", "field", "edge")


def test_any_size_that_it_was_exported_with(tmp_path):
    """Pictures of several sizes in a batch; one that is smaller than the program takes is continued."""
    sides = torch.export.Dim.AUTO
    network = archive(tmp_path, Bands, IMAGE, batch=ANY, sides=sides, config=CLASSES)
    llm = engine_here(tmp_path, max_num_seqs=4)
    images = [image(40, 72), image(64, 64), image(40, 72)]
    for one, result in zip(images, generated(llm, images), strict=True):
        np.testing.assert_array_equal(result.array[0], plain(network, one)[0].argmax(0))


def test_a_scene_is_cut_and_scaled_as_an_item_of_mlm_says(tmp_path):
    """Bands by name, scaling, classes and the task come of the item; the map lies on the scene."""
    folder = tmp_path / "model"
    network = archive(folder, Bands, IMAGE, batch=ANY, name="fields.pt2")
    scaling = [{"type": "z-score", "mean": 1000 * n, "stddev": 2000 + n} for n in range(4)]
    described = item(["red", {"name": "green"}, "blue", "nir"], value_scaling=scaling)
    (folder / "item.json").write_text(json.dumps(described))
    pixels = image(150, 200, dtype=np.uint16)
    place = {"crs": "EPSG:32614", "transform": PLACE}
    names = ("nir", "blue", "green", "red")
    with rasterio.open(
        tmp_path / "scene.tif", "w", "GTiff", width=200, height=150, count=4, dtype="uint16", **place
    ) as file:
        file.write(pixels)
        file.descriptions = names
    llm = engine_here(folder, max_num_seqs=4)
    (found,) = generated(llm, [tmp_path / "scene.tif"])
    assert (found.crs, found.transform[:6]) == ("EPSG:32614", tuple(place["transform"])[:6])
    assert found.class_names == ("other", "field", "edge")
    means, stds = (torch.tensor([one[key] for one in scaling])[:, None, None] for key in ("mean", "stddev"))
    seen = (torch.tensor(pixels[[3, 2, 1, 0]].astype(np.float32)) - means) / stds
    alone = {(0, 0): np.s_[:, :], (64, 64): np.s_[:22, :], (86, 136): np.s_[-22:, -8:]}
    for (row, col), inner in alone.items():  # what no other tile has: the last ones are shifted inward
        window = np.s_[row : row + 64, col : col + 64]
        expected = plain(network, seen[:, *window])[0].argmax(0)
        np.testing.assert_array_equal(found.array[0][window][inner], expected[inner])


def test_bands_may_be_the_last_axis_and_batches_be_one(tmp_path):
    """As ``dim_order`` says."""
    order = {"dim_order": ["batch", "height", "width", "channel"], **CLASSES}
    network = archive(tmp_path, LastBands, torch.rand(1, 64, 64, 4), batch=None, config=order)
    llm = engine_here(tmp_path, max_num_seqs=4)
    images = [image(64, 64) for _ in range(3)]
    for one, result in zip(images, generated(llm, images), strict=True):
        expected = plain(network, np.moveaxis(one, 0, -1))[0].argmax(0)
        np.testing.assert_array_equal(result.array[0], expected)


def test_dates_are_an_axis(tmp_path):
    """A request has one image a date; without a task the result is the tensor."""
    network = archive(tmp_path, Dated, torch.rand(2, 2, 3, 32, 32), batch=ANY)
    llm = engine_here(tmp_path, max_num_seqs=4)
    cube = RANDOM.random((2, 3, 32, 32)).astype(np.float32)
    (found,) = generated(llm, [cube])
    np.testing.assert_allclose(found.array, plain(network, cube)[0], rtol=1e-6)


def test_other_inputs_go_by_the_names_of_the_program(tmp_path):
    """Tensors by name in, tensors by name out; what does not fit is refused before it reaches the engine."""
    network = archive(tmp_path, Pair, torch.rand(2, 3), torch.rand(2, 3), batch=ANY)
    llm = engine_here(tmp_path, max_num_seqs=4)
    requests = [{name: RANDOM.random(3).astype(np.float32) for name in ("first", "second")} for _ in range(3)]
    for asked, found in zip(requests, generated(llm, requests), strict=True):
        expected = plain(network, asked["first"], asked["second"])
        assert found.arrays.keys() == expected.keys()
        for name, array in found.arrays.items():
            np.testing.assert_allclose(array, expected[name][0], rtol=1e-5)
    wrong = ({**requests[0], "first": np.zeros(4, np.float32)}, "scene.tif")
    for asked, why in zip(wrong, (r"first must be float32 \[3\]", "tensors by name"), strict=True):
        with pytest.raises(InputError, match=why):
            llm.generate(asked, use_tqdm=False)


def test_dicts_constants_and_keywords_are_laid_flat(tmp_path):
    """Inputs are named by what they stood in; what was no tensor stays as it was; outputs are named by their places."""
    free = {0: ANY}
    example, shift = ({"a": torch.rand(2, 3), "b": torch.rand(2, 3)}, 2.0), torch.rand(2, 3)
    shapes = {"pair": {"a": free, "b": free}, "factor": None, "shift": free}
    program = torch.export.export(Options(), example, {"shift": shift}, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "model.pt2")
    llm = engine_here(tmp_path, max_num_seqs=4)
    requests = [{name: RANDOM.random(3).astype(np.float32) for name in ("pair_a", "pair_b", "shift")} for _ in range(3)]
    for asked, found in zip(requests, generated(llm, requests), strict=True):
        assert found.arrays.keys() == {"scaled", "rest.0"}
        np.testing.assert_allclose(found.arrays["scaled"], asked["pair_a"] * 2 + asked["shift"], rtol=1e-6)
        np.testing.assert_array_equal(found.arrays["rest.0"], asked["pair_b"])


def test_axes_without_bounds_and_bfloat16(tmp_path):
    """Longer inputs than the start makes up are taken; a name is kept where there is one output."""
    free = torch.export.Dim.DYNAMIC
    network = Words().eval()
    example = torch.randint(0, 50, (2, 9)), torch.rand(2, 1).bfloat16()
    program = torch.export.export(network, example, dynamic_shapes=({0: free, 1: free}, {0: free}))
    torch.export.save(program, tmp_path / "model.pt2")
    llm = engine_here(tmp_path, max_num_seqs=4)
    for length in (3, 1500):
        ids, weight = RANDOM.integers(0, 50, length), np.array([0.5], np.float32)
        (found,) = generated(llm, [{"ids": ids, "weight": weight}])
        assert list(found.arrays) == ["vector"]
        expected = plain(network, ids, weight)["vector"][0]
        np.testing.assert_allclose(found.arrays["vector"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"resize_type": "crop"}, '"resize_type" of the MLM item'),
        ({"statistics": [{"mean": 1}]}, r'"statistics" .*MLM 1\.4'),
        ({"pre_processing_function": {"format": "python", "expression": "a:b"}}, "no code that an item names"),
        ({"bands": [{"name": "ndvi", "expression": "(a-b)/(a+b)"}] * 4}, "is an expression"),
        ({"bands": 5}, r"malformed: Expected `array`.*bands"),
        ({"bands": [{}] * 4}, "missing required field `name`"),
        ({"value_scaling": [{"type": []}]}, "its type must be one of"),
        ({"value_scaling": [{"type": "scale", "value": 10**400}]}, "needs the numbers value"),
        ({"value_scaling": [{"type": "clip", "minimum": 2, "maximum": 1}]}, "above its maximum"),
    ],
)
def test_what_an_item_asks_for_and_nobody_does_is_refused(entries, why, tmp_path):
    """With what it says, instead of results of other values."""
    archive(tmp_path, Bands, IMAGE, batch=ANY, name="fields.pt2")
    (tmp_path / "item.json").write_text(json.dumps(item(**{"bands": ["red", "green", "blue", "nir"], **entries})))
    with pytest.raises(OptionError, match=why):
        engine_here(tmp_path)


@pytest.mark.slow
def test_an_engine_in_processes_of_its_own(tmp_path):
    """The worker reads the archive itself."""
    network = archive(tmp_path, Bands, IMAGE, batch=ANY, config=CLASSES)
    llm = engine_elsewhere(str(tmp_path))
    one = image(64, 64)
    (found,) = generated(llm, [one])
    np.testing.assert_array_equal(found.array[0], plain(network, one)[0].argmax(0))
    llm.llm_engine.engine_core.shutdown()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"bands": ["red", "green"]}, "takes 4 bands, and 2 are named: red, green"),
        ({"dim_order": ["batch", "channel", "rows", "cols"]}, '"dim_order" must name'),
        ({"value_scaling": [{"type": "scale", "value": 0}]}, "divides by 0"),
        ({"value_scaling": [{"type": "processing", "expression": "A*2"}]}, "expressions are not evaluated"),
        ({"archive": "other.pt2"}, 'name it in config.json: "archive"'),
        ({"min_size": 0}, '"min_size" in config.json must be'),
    ],
)
def test_what_config_json_says_wrongly_is_named(config, why, tmp_path):
    """At the start."""
    archive(tmp_path, Bands, IMAGE, batch=ANY, config=config)
    with pytest.raises(Exception, match=why):
        engine_here(tmp_path)


def test_two_archives_need_a_name(tmp_path):
    """None is guessed; the archive itself is no folder."""
    archive(tmp_path, Bands, IMAGE, batch=ANY, config=CLASSES, name="one.pt2")
    (tmp_path / "two.pt2").write_bytes((tmp_path / "one.pt2").read_bytes())
    with pytest.raises(OptionError, match=r"holds one.pt2, two.pt2, .* name it"):
        engine_here(tmp_path)
    with pytest.raises(OptionError, match="give its folder as the model"):
        engine_here(tmp_path / "one.pt2")


def test_the_page_runs_as_it_stands(tmp_path, monkeypatch):
    """The block of archives.md, with an engine of this process."""
    page = (Path(__file__).parents[4] / "docs" / "archives.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    block = block.replace("from vllm import LLM", "from model_folders import engine_here as LLM")
    with rasterio.open(
        "scene.tif", "w", "GTiff", width=600, height=530, count=4, dtype="uint16", crs="EPSG:32614", transform=PLACE
    ) as file:
        file.write(image(530, 600, dtype=np.uint16))
        file.descriptions = ("red", "green", "blue", "nir")
    exec(compile(block, "<docs/archives.md>", "exec"), {})  # noqa: S102 - the snippet is our own
    with rasterio.open("fields.tif") as file:
        assert (file.shape, file.crs.to_epsg(), file.transform) == ((530, 600), 32614, PLACE)
        assert set(np.unique(file.read())) <= {0, 1}
