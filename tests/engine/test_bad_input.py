"""What ``LLM.generate`` refuses before the engine sees it, and what fails behind the engine."""

from __future__ import annotations

import io

import numpy as np
import pytest
from scene_ends import settings
from scene_generator import make_scene, write_scene

from vllm_mmout import MMOutError, OutputParams
from vllm_mmout.errors import DecodeError, InputError, OptionError, ReduceError

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_scene(tmp_path_factory.mktemp("scene") / "scene.tif", make_scene(64, 96))


def refusal(llm, data, params=None):
    with pytest.raises(MMOutError) as caught:
        llm.generate(data, params, use_tqdm=False)
    return caught.value


def holding(text):
    """Makes a file of this content."""
    return lambda folder, _: _write(folder / "file.tif", text)


def _write(file, content):
    file.write_bytes(content)
    return file


def truncated(folder, path):
    return _write(folder / "cut.tif", path.read_bytes()[:2000])


def truncated_picture(folder, path):
    from PIL import Image

    stored = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(stored, "PNG")
    return _write(folder / "cut.png", stored.getvalue()[:1500])


def image(folder, path):
    from PIL import Image

    return Image.new("RGB", (32, 32))


def array(shape=(6, 8, 8), dtype=np.int16, value=0):
    return lambda folder, path: np.full(shape, value, dtype)


BAD = {
    "no such file": (lambda folder, _: str(folder / "no.tif"), ["no such file", "no.tif"]),
    "a folder": (lambda folder, _: folder, ["is a folder"]),
    "an empty file": (holding(b""), ["file.tif is empty"]),
    "not an image": (holding(b"%PDF-1.7 hello"), ["file.tif is not an image", "PDF"]),
    "text": (holding(b"these are words"), ["not an image", "these are words"]),
    "a truncated TIFF": (truncated, ["cut.tif"]),
    "a truncated picture": (truncated_picture, ["cut.png"]),
    "bytes that are no image": (lambda *_: b"nonsense", ["<8 bytes>", "not an image"]),
    "an address without a host": (lambda *_: "https:///a.tif", ["no host", "https://host/path"]),
    "too few bands": (image, ["the input has 3 bands", "takes 6", "SWIR 2", "bands=[...]"]),
    "too many bands": (array((7, 8, 8)), ["the input has 7 bands", "takes 6"]),
    "one band": (array((1, 8, 8)), ["the input has 1 band,", "takes 6"]),
    "two dimensions": (array((8, 8)), ["[bands, height, width]", "[8, 8]", "moveaxis"]),
    "four dimensions": (array((1, 6, 8, 8)), ["[bands, height, width]", "[1, 6, 8, 8]"]),
    "no pixels": (array((6, 0, 8)), ["no pixels"]),
    "all NaN": (array(dtype=np.float32, value=np.nan), ["no pixel", "NaN", "nodata="]),
    "int32": (array(dtype=np.int32), ["int32", "convert"]),
    "int64": (array(dtype=np.int64), ["int64", "convert"]),
    "bool": (array(dtype=bool), ["bool", "convert"]),
    "complex": (array(dtype=np.complex64), ["complex64", "convert"]),
    "text pixels": (array(dtype="U1", value="a"), ["<U1", "convert"]),
    "an object": (lambda *_: object(), ["an input must be a path", "object"]),
    "None": (lambda *_: None, ["an input must be a path", "NoneType"]),
    "a prompt dict without media": (lambda *_: {"prompt": "water?"}, ["multi_modal_data", "'prompt'"]),
    "a prompt dict of two media": (
        lambda _, path: {"multi_modal_data": {"image": path, "video": path}},
        ["multi_modal_data"],
    ),
    "a prompt dict of two images": (lambda _, path: {"multi_modal_data": {"image": [path] * 2}}, ["list of 2"]),
}


@pytest.mark.parametrize(("make", "says"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_before_the_engine(llm, sent, path, tmp_path, make, says):
    """Alone it is raised, in a list it is its own place's error; nothing of it reaches the engine."""
    data = make(tmp_path, path)
    error = refusal(llm, data)
    assert isinstance(error, InputError)
    assert [part for part in says if part not in str(error)] == []
    assert sent == []

    before, failed, after = llm.generate([path, data, path], use_tqdm=False)
    assert len(sent) == 2
    assert type(failed.error) is type(error)
    assert str(failed.error) == str(error)
    with pytest.raises(InputError):
        _ = failed.outputs
    np.testing.assert_array_equal(before.outputs.array, after.outputs.array)


def test_the_largest_input_is_taken(llm):
    """The limit that the refusal names is inclusive."""
    (result,) = llm.generate(np.ones((6, 1024, 1024), np.uint16), use_tqdm=False)
    assert result.outputs.array.shape == (1, 1024, 1024)


def test_all_nodata_is_refused(llm, sent):
    """An input without a single observation is an error, whether the file says nodata or the request does."""
    nothing = np.full((6, 8, 8), 7, np.int16)
    assert "no pixel" in str(refusal(llm, nothing, OutputParams(nodata=7)))
    assert sent == []


BAD_PARAMS = {
    "a band that is not there": (OutputParams(bands=[1, 2, 3, 4, 5, 7]), InputError, ["band 7", "'SWIR 2'"]),
    "a name that is not there": (
        OutputParams(bands=["blue", "green", "red", "thermal", "SWIR 1", "SWIR 2"]),
        InputError,
        ["'thermal'", "'narrow NIR'"],
    ),
    "too few bands": (OutputParams(bands=[1, 2]), InputError, ["bands chooses 2 bands", "takes 6"]),
    "too few indices": (OutputParams(indices=[0, 1]), InputError, ["indices chooses 2 bands", "takes 6"]),
    "an index that is not there": (OutputParams(indices=[0, 1, 2, 3, 4, 6]), InputError, ["band 7"]),
    "two processors that are not there": (
        OutputParams(processor=["masks", "segmentation", "depth"]),
        OptionError,
        ["'masks'", "'depth'", "segmentation", "tensor"],
    ),
    "an output that is not there": (
        OutputParams(output="clases"),
        OptionError,
        ["'segmentation'", "'clases'", "classes, probabilities, confidence"],
    ),
    "an output of a processor without a choice": (
        OutputParams(processor="tensor", output="classes"),
        OptionError,
        ["'tensor'", "leave the option out"],
    ),
}


@pytest.mark.parametrize(("params", "kind", "says"), BAD_PARAMS.values(), ids=BAD_PARAMS)
def test_bad_params_are_refused_before_the_engine(llm, sent, path, params, kind, says):
    """Options that this model or this input cannot honour name the value and what there is."""
    error = refusal(llm, path, params)
    assert isinstance(error, kind)
    assert [part for part in says if part not in str(error)] == []
    assert sent == []


FAILING = {
    "ReduceRaises": (ReduceError, ["ReduceRaises", "ValueError", "no reduce today"]),
    "ReduceReturnsList": (ReduceError, ["ReduceReturnsList", "tensor or a dict of tensors", "got list"]),
    "ReduceReturnsOneRow": (ReduceError, ["axis 0", "[2, 2] for 1 request"]),
    "ReduceReturnsSparse": (ReduceError, ["sparse", "to_dense"]),
    "ReduceReturnsQuantised": (ReduceError, ["qint8", "cannot travel", "convert it in reduce()"]),
    "ReduceReturnsTooMuch": (ReduceError, ["over the limit", "return less"]),
    "DecodeRaises": (DecodeError, ["DecodeRaises", "LookupError", "no decode today"]),
    "DecodeExits": (DecodeError, ["DecodeExits", "SystemExit"]),
    "DecodeReturnsNone": (DecodeError, ["DecodeReturnsNone", "returned None", "must return an output object"]),
}


@pytest.mark.parametrize(("name", "kind", "says"), [(name, *what) for name, what in FAILING.items()], ids=FAILING)
def test_a_failure_behind_the_engine_is_its_own_requests(llm, path, name, kind, says):
    """A processor that fails fails its request alone; the message says which one, and how."""
    bad = OutputParams(processor=name)
    error = refusal(llm, path, bad)
    assert isinstance(error, kind)
    assert [part for part in says if part not in str(error)] == []

    before, failed, after = llm.generate([path] * 3, [OutputParams(), bad, OutputParams()], use_tqdm=False)
    assert isinstance(failed.error, kind)
    np.testing.assert_array_equal(before.outputs.array, after.outputs.array)
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_decoder_that_hangs_fails_its_own_request(llm, path):
    """The request fails after the limit, which the message names; the requests beside it have their results."""
    params = [OutputParams(), OutputParams(processor="DecodeHangs"), OutputParams()]
    with settings(llm.llm_engine.output_processor, decode_timeout_s=1.0):
        before, failed, after = llm.generate([path] * 3, params, use_tqdm=False)
    assert isinstance(failed.error, DecodeError)
    assert "longer than the limit of 1 s" in str(failed.error)
    assert "decode_timeout_s" in str(failed.error)
    np.testing.assert_array_equal(before.outputs.array, after.outputs.array)


def test_a_decoders_exception_is_the_cause(llm, path):
    """Whoever debugs a decoder finds its own exception."""
    error = refusal(llm, path, OutputParams(processor="DecodeRaises"))
    assert isinstance(error.__cause__, LookupError)
