"""Items of STAC's MLM extension: what is read of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.archives.contents import Contents, InputTensor, SizeRange
from vllm_mmout.wings.archives.folders import _raster
from vllm_mmout.wings.archives.mlm import entries_of, item_of

AXES = (SizeRange(1, 8), SizeRange(2, 2), SizeRange(64, 64), SizeRange(64, 64))
PROGRAM = Contents(
    Path("model.pt2"), "model", (InputTensor("x", "float32", AXES),), (None,), (0,), ("",), (4,), {}, frozenset()
)


def item(version="1.5.2", result=None, **entries):
    """An item of a model of two classes."""
    given = {"name": "in", "bands": ["B4", "B8"], "input": {"dim_order": ["batch", "bands", "height", "width"]}}
    output = {"name": "out", "tasks": ["semantic-segmentation"], "classification:classes": None, **(result or {})}
    return {
        "stac_version": "1.1.0",
        "stac_extensions": [f"https://stac-extensions.github.io/mlm/v{version}/schema.json"],
        "properties": {"mlm:input": [given | entries], "mlm:output": [output]},
    }


def read(described):
    return entries_of(item_of(described), [4])


@pytest.mark.parametrize("version", ["1.4.0", "1.5.0", "1.5.2", "1.6.0"])
def test_versions_from_1_4_are_read(version):
    """Bands and order of axes come of the item."""
    assert read(item(version))["bands"] == ["B4", "B8"]


def test_another_major_version_is_refused():
    """The error names the version."""
    with pytest.raises(OptionError, match=r"MLM 2\.0\.0"):
        read(item("2.0.0"))


def test_items_of_stac_model_are_read():
    """What the package stac-model writes: empty lists, flags of MLM 1.3, and classes by another name."""
    classes = [{"value": 0, "name": "no", "description": None}, {"value": 1, "name": "yes"}]
    described = item(
        result={"classification:classes": [], "classification_classes": classes, "post_processing_function": []},
        norm_by_channel=True,
        pre_processing_function=[],
        variables=[],
    )
    assert read(described)["mmout"] == {"output_processor": "segmentation", "class_names": ["no", "yes"]}


def test_variables_are_channels():
    """MLM 1.5 names variables of data cubes in place of bands; both at once are refused."""
    named = item(bands=[], variables=["t2m", {"name": "u10"}])
    assert read(named)["bands"] == ["t2m", "u10"]
    with pytest.raises(OptionError, match='"bands" and "variables"'):
        read(item(variables=["t2m"]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"result": {"dim_order": ["batch", "height", "width", "class"]}}, "height and width must come last"),
        ({"bands": [{"name": "ndvi", "format": "x", "expression": "a"}]}, "'ndvi' is an expression"),
        ({"post_processing_function": [{"format": "x", "expression": "a"}]}, "post_processing_function"),
    ],
)
def test_outputs_that_are_otherwise_are_refused(change, words):
    """Axes in another order, bands that are computed, and functions behind the model."""
    with pytest.raises(OptionError, match=words):
        read(item(result={"result": change["result"]} if "result" in change else change))


@pytest.mark.parametrize(
    "order",
    [
        ["batch", "bands", "height", "width"],
        ["batch", "band", "y", "x"],
        ["B", "C", "H", "W"],
        ["batch", "variables", "lat", "lon"],
    ],
)
def test_axes_have_several_names(order):
    """The names that MLM recommends for the axes of an image."""
    assert _raster(PROGRAM, {"dim_order": order})["dim_order"] == ["batch", "channel", "height", "width"]


@pytest.mark.parametrize("order", [["batch", "h", "y", "x"], ["batch", "channel", "rows", "cols"]])
def test_axes_that_are_unclear_are_refused(order):
    """A name for two axes, and names that are none."""
    with pytest.raises(OptionError, match='"dim_order" must name batch, channel, height, width'):
        _raster(PROGRAM, {"dim_order": order})


def test_tiles_are_within_the_largest_size_that_config_json_allows():
    """Of a program of any size the usual tile is cut down to what config.json says."""
    free = Contents(
        Path("model.pt2"),
        "model",
        (InputTensor("x", "float32", (*AXES[:2], SizeRange(2, 2**20), SizeRange(2, 2**20))),),
        (None,),
        (0,),
        ("",),
        (4,),
        {},
        frozenset(),
    )
    assert _raster(free, {"max_size": 64})["tile_size"] == 64
    assert _raster(free, {"max_size": 64, "tile_size": 32})["tile_size"] == 32
    assert _raster(free, {})["tile_size"] == 512
