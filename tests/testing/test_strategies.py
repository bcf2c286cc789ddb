from __future__ import annotations

import inspect
import math
from io import BytesIO

import numpy as np
import pytest
import rasterio
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS

torch = pytest.importorskip("torch", reason="the strategies are of torch tensors")

from vllm_mmout import OutputParams  # noqa: E402 - needs torch
from vllm_mmout.geo import Raster, write_geotiff  # noqa: E402
from vllm_mmout.processors import SegmentationProcessor, TensorProcessor  # noqa: E402
from vllm_mmout.testing import FLOATING, georeferences, model_outputs, output_params, rasters, tensors  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]

SEARCH = settings(max_examples=2000, derandomize=True, database=None)
ANY_FOUND = settings(SEARCH, phases=[Phase.generate])
"""The first that is found, which is not made smaller."""
ANY = tensors(("n", "k", "k", (2, 5)))
WIDE = tensors((2, 30), dtype="float32")


@given(ANY)
def test_shapes_are_those_asked_for(tensor):
    """Named axes are alike within a tensor and in their range, others in the range of their own."""
    requests, first, second, last = tensor.shape
    assert 1 <= requests <= 4
    assert first == second
    assert 1 <= first <= 6
    assert 2 <= last <= 5
    assert str(tensor.dtype).removeprefix("torch.") in FLOATING


def test_default_dtypes_all_occur():
    """Each of the floating-point types of models is drawn."""
    for dtype in FLOATING:
        find(ANY, lambda tensor, dtype=dtype: tensor.dtype == getattr(torch, dtype), settings=ANY_FOUND)


@given(tensors(("n", "k"), lengths={"n": 3, "k": (0, 2)}))
def test_lengths_of_names_may_be_given(tensor):
    """A name has the length that was given for it; 0 is allowed."""
    assert tensor.shape[0] == 3
    assert tensor.shape[1] in {0, 1, 2}


@given(model_outputs({"a": ("n", "k", 4), "b": ("n", "k"), "c": ("rows",)}, {"b": "int64", "c": ("uint8", "bool")}))
def test_outputs_share_their_requests_and_names(outputs):
    """All tensors of a dict have the same axis 0, whatever it is called, and named axes of the same length."""
    a, b, c = outputs["a"], outputs["b"], outputs["c"]
    assert len(a) == len(b) == len(c)
    assert a.shape[1] == b.shape[1]
    assert b.dtype == torch.int64
    assert c.dtype in {torch.uint8, torch.bool}


@given(st.data(), st.sampled_from(["float64", "uint8", "int8", "int16", "uint16", "int32", "int64", "uint64", "bool"]))
def test_every_dtype_can_be_drawn(data, dtype):
    """Tensors come in the dtype asked for, by name or as torch's own."""
    for asked in (dtype, getattr(torch, dtype)):
        assert data.draw(tensors(("n", 3), dtype=asked)).dtype == getattr(torch, dtype)


VALUES = {
    "NaN": lambda tensor: tensor.isnan().any(),
    "all NaN": lambda tensor: tensor.isnan().all(),
    "infinity": lambda tensor: tensor.isposinf().any(),
    "minus infinity": lambda tensor: tensor.isneginf().any(),
    "minus zero": lambda tensor: ((tensor == 0) & tensor.signbit()).any(),
    "subnormal": lambda tensor: ((tensor != 0) & (tensor.abs() < torch.finfo(torch.float32).smallest_normal)).any(),
    "largest": lambda tensor: (tensor == torch.finfo(torch.float32).max).any(),
    "all equal": lambda tensor: tensor.isfinite().all() and len(tensor.unique()) == 1 and tensor[0, 0] != 0,
    "ties": lambda tensor: tensor.isfinite().all() and 1 < len(tensor.unique()) < 5,
    "hardly two equal": lambda tensor: len(tensor.unique()) > 55,
    "noise with NaN": lambda tensor: tensor.isnan().any() and len(tensor.unique()) > 20,
}
LAYOUTS = {
    "contiguous": lambda tensor: tensor.is_contiguous() and not tensor.storage_offset(),
    "transposed": lambda tensor: tensor.stride() == (30, 1, 6),
    "strided": lambda tensor: tensor.stride() == (60, 10, 2),
    "shifted": lambda tensor: tensor.storage_offset() == 30,
    "repeated": lambda tensor: tensor.stride()[0] == 0,
}


@pytest.mark.parametrize("what", VALUES)
def test_values_that_break_things_occur(what):
    """Each kind of value can be found."""
    find(WIDE, lambda tensor: bool(VALUES[what](tensor)), settings=ANY_FOUND)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_in_memory_occur(layout):
    """Each way to lie in memory can be found, and none but the first without ``layouts``."""
    find(tensors((2, 6, 5)), LAYOUTS[layout], settings=ANY_FOUND)

    @settings(max_examples=50, database=None)
    @given(tensors((2, 6, 5), layouts=False))
    def check(tensor):
        assert LAYOUTS["contiguous"](tensor)

    check()


@given(tensors(("n", 7), elements=st.floats(0, 1, width=16)))
def test_values_may_be_given(tensor):
    """With ``elements`` no other value occurs."""
    assert ((tensor >= 0) & (tensor <= 1)).all()


def test_tensors_shrink_to_small_and_zero():
    """The simplest tensor is one zero, contiguous float32; with one NaN it is that NaN."""
    simplest = find(ANY, lambda tensor: True, settings=SEARCH)
    assert simplest.tolist() == [[[[0.0, 0.0]]]]
    assert simplest.dtype == torch.float32
    assert simplest.is_contiguous()
    spoilt = find(tensors(("n", "k")), lambda tensor: bool(tensor.isnan().any()), settings=SEARCH)
    assert spoilt.shape == (1, 1)
    two = find(
        tensors(("n", "k")), lambda tensor: len(tensor) > 1 and bool((tensor[0] != tensor[1]).any()), settings=SEARCH
    )
    assert two.tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize("dtype", ["floating", "save", 3])
def test_an_unknown_dtype_is_refused(dtype):
    """What is no dtype of torch is an error that says how dtypes are called, not a silent float."""
    with pytest.raises(TypeError, match="dtype must be one of torch's"):
        find(tensors((1,), dtype=dtype), lambda tensor: True, settings=SEARCH)


@given(rasters())
@settings(max_examples=60)
def test_rasters_can_be_written_and_read_by_rasterio(raster: Raster):
    """All that a drawn raster says, rasterio finds in the file."""
    buffer = BytesIO()
    write_geotiff(
        buffer,
        raster.array,
        georeference=raster.georeference,
        nodata=raster.nodata,
        band_names=raster.descriptions,
        metadata=raster.metadata,
    )
    with rasterio.open(BytesIO(buffer.getvalue())) as file:
        np.testing.assert_array_equal(file.read(), raster.array, strict=True)
        assert file.nodata == raster.nodata or (math.isnan(file.nodata) and math.isnan(raster.nodata))
        assert file.descriptions == raster.descriptions
        assert {name: file.tags().get(name) for name in raster.metadata} == dict(raster.metadata)
        if raster.georeference is not None:
            crs = file.gcps[1] if raster.georeference.gcps else file.crs
            asked = raster.georeference.gcps_crs or raster.georeference.crs
            assert crs == (CRS.from_string(asked) if asked else None)
            assert len(file.gcps[0]) == len(raster.georeference.gcps)


@given(rasters(2, (3, 4), 5, dtypes=("uint8", "float32"), placed=False))
def test_rasters_are_as_asked_for(raster):
    """Bands, size, dtype and whether there is a place follow the arguments."""
    assert raster.array.shape in {(2, 3, 5), (2, 4, 5)}
    assert raster.array.dtype in ("uint8", "float32")
    assert raster.georeference is None


@pytest.mark.parametrize(
    "kind",
    [
        lambda place: place.gcps,
        lambda place: place.transform and place.transform[1],
        lambda place: place.transform and place.transform[4] > 0,
        lambda place: place.transform and place.transform[0] < 0 and not place.transform[1],
        lambda place: place.pixel_is_point,
        lambda place: place.crs is None and not place.gcps,
    ],
    ids=["points", "rotated", "south-up", "mirrored", "pixel is point", "no system"],
)
def test_places_of_every_kind_occur(kind):
    """Each kind of georeference can be found."""
    find(georeferences(), lambda place: bool(kind(place)), settings=ANY_FOUND)


@given(output_params(SegmentationProcessor), output_params(SegmentationProcessor()), output_params())
def test_params_are_those_of_the_processor(of_class, of_instance, of_none):
    """``output`` is one that the processor knows, or None; none without a processor; paths are never set."""
    assert {of_class.output, of_instance.output} <= {None, *SegmentationProcessor.outputs}
    assert of_none.output is None
    assert {params.path for params in (of_class, of_instance, of_none)} == {None}


def test_params_shrink_to_the_default():
    """The simplest params are the default ones; the others are found; without ``free`` only ``output`` is set."""
    assert find(output_params(SegmentationProcessor), lambda params: True, settings=SEARCH) == OutputParams()
    for name in ("bands", "indices", "nodata", "overlap", "partial_images"):
        find(output_params(TensorProcessor), lambda params, name=name: bool(getattr(params, name)), settings=ANY_FOUND)
    for output in SegmentationProcessor.outputs:
        fixed = output_params(SegmentationProcessor, free=False)
        found = find(fixed, lambda params, output=output: params.output == output, settings=SEARCH)
        assert found == OutputParams(output=output)


def test_the_strategies_say_what_they_take():
    """Each public strategy names its arguments in its documentation."""
    for strategy in (tensors, model_outputs, rasters, output_params):
        for argument in inspect.signature(strategy).parameters:
            assert f"{argument}:" in inspect.getdoc(strategy)
