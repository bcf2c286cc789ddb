from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rasterio.io import MemoryFile

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.geo import Georeference
from vllm_mmout.outputs import Source
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.regression import RegressionProcessor

torch = pytest.importorskip("torch", reason="processors are given torch tensors")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]

ANY = OutputParams()
INTEGERS = {"uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768}
"""Integer dtype -> its nodata."""


def values(requests=1, bands=2, height=9, width=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 100 * torch.randn(requests, bands, height, width, generator=generator)


def result(processor, output, params=ANY):
    """What a request of a batch of one gets."""
    return processor.decode(processor.reduce(output, params)[0], params)


def row(*numbers, dtype=torch.float32):
    """The output of a model for one request: one band of one row."""
    return torch.tensor(numbers, dtype=dtype).reshape(1, 1, 1, -1)


def expected(raw, scale, offset, clip, dtype):
    """The values of one request [bands, height, width] by numpy: what is stored, and where it is known."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = raw.astype(np.float32) * np.float32(scale) + np.float32(offset)
        clipped = (
            scaled if clip is None else np.clip(scaled, *(None if end is None else np.float32(end) for end in clip))
        )
    known = np.isfinite(clipped)
    if dtype not in INTEGERS:
        limit = np.finfo(dtype).max
        return np.where(known, np.clip(clipped, -limit, limit), np.nan).astype(dtype), known
    limits, nodata = np.iinfo(dtype), INTEGERS[dtype]
    low, high = (limits.min, limits.max - 1) if nodata == limits.max else (limits.min + 1, limits.max)
    return np.where(known, np.clip(np.rint(clipped), low, high), nodata).astype(dtype), known


NUMBER = st.floats(-1e4, 1e4, width=32)
CLIPS = st.none() | st.tuples(st.none() | st.floats(-99, -1), st.none() | st.floats(1, 99)).filter(any)
DTYPES = st.sampled_from(["float32", "float16", *INTEGERS])
RAW = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=4, max_dims=4, max_side=5),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True) | NUMBER,
)


@given(raw=RAW, scale=NUMBER.filter(bool), offset=NUMBER, clip=CLIPS, dtype=DTYPES)
def test_values_are_those_of_numpy(raw, scale, offset, clip, dtype):
    """What is stored equals numpy's in float32; nodata is where no finite value is, and only there."""
    processor = RegressionProcessor(scale=scale, offset=offset, clip=clip, dtype=dtype)
    raster = result(processor, torch.from_numpy(raw[:1]))
    wanted, known = expected(raw[0], scale, offset, clip, dtype)
    np.testing.assert_array_equal(raster.array, wanted, strict=True)
    missing = np.isnan(raster.array) if math.isnan(raster.nodata) else raster.array == raster.nodata
    np.testing.assert_array_equal(missing, ~known)


@given(raw=RAW, scale=NUMBER.filter(bool), clip=CLIPS, dtype=DTYPES)
def test_a_batch_gives_what_its_members_give_alone(raw, scale, clip, dtype):
    """Reducing several requests at once gives the same bits as reducing each; the model's output is left as it was."""
    processor, batch = RegressionProcessor(scale=scale, clip=clip, dtype=dtype), torch.from_numpy(raw.copy())
    alone = [processor.reduce(batch[place : place + 1], ANY).numpy().tobytes() for place in range(len(batch))]
    assert processor.reduce(batch, ANY).numpy().tobytes() == b"".join(alone)
    assert batch.numpy().tobytes() == raw.tobytes()


def test_zeros_of_both_signs_travel_as_one():
    """-0.0, whose place under a clip at 0 differs with the place of a pixel in a vector, becomes 0.0."""
    for clip in (None, [-0.0, 1], [-1, -0.0]):
        output = torch.tensor([-1.0, -0.0, 0.0, 1.0] * 9).reshape(1, 1, 4, 9)
        reduced = RegressionProcessor(clip=clip, offset=-0.0).reduce(output, ANY)
        assert (reduced == 0).any()
        assert not reduced[reduced == 0].signbit().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_point_output_is_taken(dtype):
    """What the model emits is taken in its dtype and computed in float32."""
    output = values().to(dtype)
    array = result(RegressionProcessor(scale=0.1, offset=3), output).array
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, (output[0].float() * 0.1 + 3).numpy())


def test_an_output_without_bands_is_one_band():
    """[n, height, width] gives the same as [n, 1, height, width]."""
    output = values(requests=3, bands=1)
    processor = RegressionProcessor(scale=[2], units=["m"])
    assert torch.equal(processor.reduce(output[:, 0], ANY), processor.reduce(output, ANY))
    assert result(processor, output[:1, 0]).array.shape == (1, 9, 7)


def test_each_band_has_its_own_scale_and_offset():
    """Numbers of a list belong to the bands in their order."""
    output = values()
    array = result(RegressionProcessor(scale=[2, 0.5], offset=[1, -1]), output).array
    np.testing.assert_array_equal(array[0], output[0, 0].numpy() * np.float32(2) + 1)
    np.testing.assert_array_equal(array[1], output[0, 1].numpy() * np.float32(0.5) - 1)


def test_infinities_are_clipped_or_nodata():
    """A clip makes an infinity its end; on a side that is open it is nodata, like NaN."""
    output = row(-math.inf, -5, 5, math.inf, math.nan)
    array = result(RegressionProcessor(clip=[None, 3]), output).array
    np.testing.assert_array_equal(array.ravel(), [np.nan, -5, 3, 3, np.nan])
    array = result(RegressionProcessor(clip=[0, 3], dtype="uint8"), output).array
    assert array.ravel().tolist() == [0, 0, 3, 3, 255]
    assert result(RegressionProcessor(dtype="int8"), output).array.ravel().tolist() == [-128, -5, 5, -128, -128]


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("uint8", [0, 0, 2, 2, 254, 254]),
        ("int8", [-127, -2, 2, 2, 127, 127]),
        ("uint16", [0, 0, 2, 2, 255, 65534]),
        ("int16", [-32767, -2, 2, 2, 255, 32767]),
    ],
)
def test_integers_are_rounded_half_to_even_and_never_nodata(dtype, stored):
    """A value beyond what the dtype holds is the nearest that it holds, and not nodata."""
    raster = result(RegressionProcessor(dtype=dtype), row(-1e30, -1.5, 1.5, 2.5, 255, 1e30))
    assert raster.array.ravel().tolist() == stored
    assert raster.nodata == INTEGERS[dtype]
    assert raster.valid is None or raster.valid.all()


def test_half_precision_holds_no_infinity():
    """A value beyond float16 is its largest number."""
    array = result(RegressionProcessor(dtype="float16"), row(-1e6, 65519, 65520, 1e6)).array
    assert (array.dtype, array.ravel().tolist()) == (np.float16, [-65504, 65504, 65504, 65504])


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("int16", 2), ("uint8", 1)])
def test_what_travels_has_the_size_of_the_dtype(dtype, size):
    """The option dtype decides how many bytes a pixel leave the device."""
    reduced = RegressionProcessor(dtype=dtype).reduce(values(requests=3), ANY)
    assert (reduced.shape, reduced.element_size()) == ((3, 2, 9, 7), size)


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_a_geotiff_says_values_units_names_and_nodata(dtype):
    """With rasterio one reads the values, and for each band its unit and name; so also when laid on an input."""
    processor = RegressionProcessor(
        scale=10, clip=[0, None], dtype=dtype, units=["Mg/ha", None], band_names=["biomass", "ratio"]
    )
    output = values()
    output[0, 0, 0, 0] = math.nan
    raster = result(processor, output)
    placed = raster.placed(Source(size=(9, 7), georeference=Georeference("EPSG:32632", (10, 0, 5e5, 0, -10, 5e6))))
    for one in (raster, placed):
        with MemoryFile(one.to_bytes("tiff")) as memory, memory.open() as file:
            assert (file.units, file.descriptions) == (("Mg/ha", None), ("biomass", "ratio"))
            np.testing.assert_array_equal(file.read(), raster.array, strict=True)
            np.testing.assert_array_equal([file.nodata], [raster.nodata])
            assert np.argwhere(file.read_masks(1) == 0).tolist() == [[0, 0]]
    assert placed.crs == "EPSG:32632"


def test_one_unit_is_that_of_every_band():
    """Text for units holds for all bands; an .npz says them too."""
    raster = result(RegressionProcessor(units="m³/m³"), values(bands=3))
    assert raster.units == ("m³/m³",) * 3
    with np.load(BytesIO(raster.to_bytes("npz"))) as arrays:
        assert arrays["units"].tolist() == ["m³/m³"] * 3


def test_without_options_a_raster_says_nothing_of_units_and_names():
    """No unit and no name is made up."""
    raster = result(RegressionProcessor(), values())
    with MemoryFile(raster.to_bytes("tiff")) as memory, memory.open() as file:
        assert (file.units, file.descriptions) == ((None, None), (None, None))


def test_requests_in_threads_do_not_meet():
    """One instance serves requests at once, each as if it were alone."""
    processor = RegressionProcessor(scale=[2, 3], dtype="int16")
    jobs = [values(seed=seed) for seed in range(48)]
    alone = [result(processor, job).array for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: result(processor, job).array, jobs))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_result_is_its_owners():
    """Writing to a result does not change what was received."""
    raw = RegressionProcessor().reduce(values(), ANY)[0]
    before = raw.clone()
    RegressionProcessor().decode(raw, ANY).array[:] = 9
    assert torch.equal(raw, before)


def test_an_unknown_output_lists_the_known_one():
    """Both sides refuse an output that the processor does not have; "values" is the one it has."""
    for call in (RegressionProcessor().reduce, RegressionProcessor().decode):
        with pytest.raises(OptionError, match=r"'classes'.*\(known: values\)"):
            call(values(), OutputParams(output="classes"))
    assert result(RegressionProcessor(), values(), OutputParams(output="values")).count == 2


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (torch.zeros(2, 4), "got float32 [2, 4]"),
        (torch.zeros(1, 1, 1, 4, 4), "got float32 [1, 1, 1, 4, 4]"),
        (torch.zeros(1, 0, 4, 4), "got float32 [1, 0, 4, 4]"),
        (torch.zeros(1, 2, 4, 4, dtype=torch.int32), "got int32 [1, 2, 4, 4]"),
        (torch.zeros(1, 2, 4, 4, dtype=torch.complex64), "got complex64 [1, 2, 4, 4]"),
        ({"depth": torch.zeros(1, 2, 4, 4), "aux": torch.zeros(1)}, "got a dict of 2 tensors (aux, depth)"),
    ],
)
def test_other_output_is_refused_with_what_is_taken(output, says):
    """An error says what regression takes, and what was given."""
    with pytest.raises(ReduceError, match=r"floating point \[n, bands, height, width\]") as caught:
        RegressionProcessor().reduce(output, ANY)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"scale": [1, 2, 3]}, {"offset": [1]}, {"units": ["m"]}, {"band_names": ["a", "b", "c"]}],
    ids=lambda options: next(iter(options)),
)
def test_options_must_count_the_bands_of_the_model(options):
    """A list for another number of bands is an error of the request, also a list of one."""
    with pytest.raises(ReduceError, match=f"{next(iter(options))} has . entries, the model emits 2 bands"):
        RegressionProcessor(**options).reduce(values(), ANY)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scale": "2"}, "scale must be a number"),
        ({"scale": True}, "scale must be a number"),
        ({"scale": []}, "scale must be a number"),
        ({"scale": [1, None]}, "scale must be a number"),
        ({"scale": math.nan}, "scale must be a number"),
        ({"scale": 1e39}, "scale must be a number"),
        ({"scale": 10**400}, "scale must be a number"),
        ({"scale": 0}, "scale must not be 0"),
        ({"scale": [1, 1e-60]}, "scale must not be 0"),
        ({"offset": math.inf}, "offset must be a number"),
        ({"units": ""}, "units must be text"),
        ({"units": []}, "units must be text"),
        ({"units": ["m", 3]}, "units must be text"),
        ({"band_names": "depth"}, "band_names must be a list of names"),
        ({"band_names": []}, "band_names must be a list of names"),
        ({"band_names": ["a", "a"]}, "names a band twice"),
        ({"clip": 3}, "clip must be"),
        ({"clip": [0]}, "clip must be"),
        ({"clip": [0, math.inf]}, "clip must be"),
        ({"clip": [None, None]}, "two open sides"),
        ({"clip": [2, 2]}, "lower end first"),
        ({"dtype": "int32"}, "dtype must be one of float32, float16, uint8"),
        ({"dtype": ["int8"]}, "dtype must be one of"),
        ({"scale": [1, 2], "units": ["m"]}, r"number of bands \(scale 2, units 1\)"),
    ],
)
def test_malformed_options_are_refused(options, says):
    """The constructor says which option is wrong, before any request."""
    with pytest.raises(OptionError, match=says):
        RegressionProcessor(**options)


@pytest.mark.parametrize(
    "raw",
    [
        torch.zeros(4, 4),
        torch.zeros(1, 2, 4, 4),
        torch.zeros(2, 4, 4, dtype=torch.float16),
        {"a": torch.zeros(1, 2, 2), "b": torch.zeros(1)},
    ],
)
def test_decode_refuses_what_reduce_does_not_return(raw):
    """A subclass with a reduce of its own is told to bring its own decode."""
    with pytest.raises(DecodeError, match=r"must override decode|must be one tensor"):
        RegressionProcessor().decode(raw, ANY)


def test_a_subclass_without_a_choice_of_outputs_serves():
    """Its ``outputs`` are empty, as the base class has it."""

    class Depth(RegressionProcessor):
        outputs = ()

    processor = Depth()
    np.testing.assert_array_equal(result(processor, values()).array, result(RegressionProcessor(), values()).array)
    with pytest.raises(OptionError, match="output 'values' is not known"):
        processor.reduce(values(), OutputParams(output="values"))
