"""Installed IO Processor plugins as output processors of ``LLM.generate``, in this process."""

from __future__ import annotations

import _thread
import base64
import gc
import io
import threading
import time
import weakref
from pathlib import Path

import io_plugins_for_tests
import numpy as np
import pytest
import tifffile
import torch
import water_oracle
from io_plugins_for_tests import SERVED
from model_folders import engine_here
from scene_ends import settings

from vllm_mmout import OutputParams
from vllm_mmout.engine.request_output import Progress
from vllm_mmout.errors import DecodeError, InputError, OptionError

pytestmark = pytest.mark.engine
LIMIT_S = 2.0


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """The module of the plugins, which are installed while the tests run."""
    folder = io_plugins_for_tests.install(tmp_path_factory.mktemp("plugins"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import io_plugins_code

        yield io_plugins_code
        io_plugins_code.RELEASE.set()


@pytest.fixture(scope="module")
def plugged(code, water_index):
    """An engine with an ordinary processor and all plugins, one of which is vLLM's own as well."""
    table = {"output_processor": SERVED, "decode_timeout_s": LIMIT_S, "max_tiles": 2}
    return engine_here(water_index, io_processor_plugin="new", additional_config={"mmout": table})


@pytest.fixture(autouse=True)
def _goes_on(plugged):
    """After each test the engine answers through a plugin and an ordinary processor, and nothing is left."""
    yield
    plugin = plugged.generate({"rows": 16}, OutputParams(processor="io_plugin:new"), use_tqdm=False)[0].outputs
    assert plugin["shape"] == [2, 16, 8]
    assert plugged.generate(np.full((6, 16, 16), 100, np.uint16), use_tqdm=False)[0].outputs.count == 1
    assert plugged.llm_engine.get_num_unfinished_requests() == 0
    deadline = time.monotonic() + 30
    while any(thread.name in {"mmout-read", "mmout-join"} for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def through(plugged, name, data, **options):
    """The one result of one input."""
    params = OutputParams(processor=f"io_plugin:{name}", **options)
    (result,) = plugged.generate(data, params, use_tqdm=False)
    return result.outputs


def made(rows, seed=0):
    """The pixels that a plugin makes of its data."""
    return np.random.default_rng(seed).integers(1, 9000, (6, rows, 8), np.uint16)


@pytest.mark.parametrize("name", ["new", "old", "async"])
@pytest.mark.parametrize("rows", [16, 40, 16 * 9])
def test_a_plugin_gets_the_models_raw_tensors_of_its_prompts_in_order(plugged, code, name, rows):
    """Of today's interface, the older, and the asynchronous; more prompts than the budget has places."""
    code.CALLS.clear()
    (result,) = plugged.generate({"rows": rows}, OutputParams(processor=f"io_plugin:{name}"), use_tqdm=False)
    found, parts = result.outputs, -(-rows // 16)
    np.testing.assert_array_equal(np.float32(found["logits"]), water_oracle.logits(made(rows)))
    assert found["dtype"] == "torch.float32"
    assert found["finished"]
    assert found["ids"] == [f"{result.request_id}-{number}" for number in range(parts)]
    assert found["token_ids"] == [[1]] * parts
    assert found["id"] == result.request_id
    assert result.progress == Progress(parts, parts)
    assert {thread for *_, thread in code.CALLS} == {"mmout-io-plugin"}
    assert [method for _, method, _, _ in code.CALLS] == ["pre_process", "post_process"]


def test_the_result_is_that_of_vllm_itself(plugged):
    """The same plugin, as vLLM's own ``encode`` runs it."""
    (theirs,) = plugged.encode({"data": {"rows": 40, "seed": 3}}, pooling_task="plugin", use_tqdm=False)
    ours = through(plugged, "new", {"rows": 40, "seed": 3})
    for key in ("plugin", "finished", "token_ids", "dtype", "shape", "logits"):
        assert ours[key] == theirs.outputs[key]


def test_tensors_by_keyword_of_forward(plugged):
    """As plugins of models that are written for vLLM make them; float32 of this model is reflectance."""
    found = through(plugged, "key-words", {"rows": 40})
    np.testing.assert_array_equal(np.float32(found["logits"]), water_oracle.logits(made(40).astype(np.float32)))


@pytest.mark.parametrize("data", [{"data": {"rows": 20, "seed": 4}}, {"rows": 20, "seed": 4}])
def test_both_forms_of_a_plugins_own_data(plugged, data):
    """What is inside of ``{"data": ...}``, and the table itself."""
    np.testing.assert_array_equal(np.float32(through(plugged, "new", data)["logits"]), water_oracle.logits(made(20, 4)))


def test_a_list_is_several_inputs_each_with_its_own_processor(plugged):
    """Plugins and ordinary processors run side by side; of a list of one pick the result is a dict."""
    array = water_oracle.scene(1, 24, 24)
    inputs = [{"rows": 40}, array, {"rows": 20, "seed": 2}, {"rows": 24}]
    picks = ["io_plugin:new", "segmentation", "io_plugin:old", ("io_plugin:async",)]
    results = plugged.generate(inputs, [OutputParams(processor=pick) for pick in picks], use_tqdm=False)
    assert [result.outputs["plugin"] for result in (results[0], results[2])] == ["New", "OldPlugin"]
    np.testing.assert_array_equal(results[1].outputs.array[0], water_oracle.logits(array).argmax(0))
    assert results[3].outputs["io_plugin:async"]["plugin"] == "AsyncAlone"


def test_many_requests_at_once_share_no_id(plugged):
    """Each plugin keeps its requests by id, and fails where it meets one twice."""
    results = plugged.generate(
        [{"rows": 20, "seed": seed} for seed in range(20)], OutputParams(processor="io_plugin:new"), use_tqdm=False
    )
    assert len({result.outputs["id"] for result in results}) == 20
    for seed, result in enumerate(results):
        np.testing.assert_array_equal(np.float32(result.outputs["logits"]), water_oracle.logits(made(20, seed)))


def test_results_do_not_keep_raw_tensors(plugged, code, monkeypatch):
    """The engine's buffers go when the plugin has made its result."""
    seen = []
    original = code.New.post_process

    def post_process(self, model_output, request_id=None, **kwargs):
        seen.extend(weakref.ref(output.outputs.data) for output in model_output)
        return original(self, model_output, request_id)

    monkeypatch.setattr(code.New, "post_process", post_process)
    through(plugged, "new", {"rows": 40})
    gc.collect()
    assert len(seen) == 3
    assert not any(isinstance(reference(), torch.Tensor) for reference in seen)


@pytest.fixture
def picture(tmp_path):
    """A TIFF of six bands and 40 rows, and its pixels."""
    array = water_oracle.scene(5, 40, 8)
    path = tmp_path / "HLS.2024122T170401.tif"
    tifffile.imwrite(path, array)
    return path, array


FORMS = {
    "a path": lambda path: path,
    "a text": str,
    "a file URL": lambda path: path.as_uri(),
    "bytes": Path.read_bytes,
    "a file in memory": lambda path: io.BytesIO(path.read_bytes()),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", ["tiff", "paths"])
def test_a_file_becomes_the_form_that_plugins_for_rasters_take(plugged, code, picture, form, name):
    """Bytes go as base64, to a plugin that takes paths alone as a copy, of which nothing is left."""
    path, array = picture
    code.CALLS.clear()
    output = through(plugged, name, form(path))
    assert output.data_format == "b64_json"
    content = io.BytesIO(base64.b64decode(output.data))
    np.testing.assert_array_equal(tifffile.imread(content), water_oracle.logits(array).argmax(0))
    copies = [Path(said) for who, what, said, _ in code.CALLS if (who, what) == ("PathsAlone", "path")]
    assert [copy.exists() for copy in copies] == ([copies[0] == path] if copies else [])


def test_a_copy_is_called_as_the_users_file(plugged, code, picture):
    """Plugins read the day of a picture from its name; nothing of it can lead out of its folder."""
    code.CALLS.clear()
    path, _ = picture
    with path.open("rb") as file:
        through(plugged, "paths", file)
    named = io.BytesIO(path.read_bytes())
    named.name = "../../..\0/.a b\n.tif"
    through(plugged, "paths", named)
    copies = [Path(said) for who, what, said, _ in code.CALLS if (who, what) == ("PathsAlone", "path")]
    assert [copy.name for copy in copies] == [path.name, "a_b_.tif"]
    assert all(copy.parent.name.startswith("mmout-io-plugin-") for copy in copies)
    assert not any(copy.parent.exists() for copy in copies)


def test_indices_of_a_file_go_along(plugged, picture):
    """As TerraTorch's plugins take them."""
    path, array = picture
    output = through(plugged, "tiff", path, indices=(5, 1, 2, 3, 4, 0))
    content = io.BytesIO(base64.b64decode(output.data))
    expected = water_oracle.logits(array[[5, 1, 2, 3, 4, 0]]).argmax(0)
    np.testing.assert_array_equal(tifffile.imread(content), expected)


@pytest.mark.parametrize("data", [np.zeros((6, 8, 8)), torch.zeros(6, 8, 8), 3, ("a.tif", "b.tif")])
def test_what_no_plugin_takes(plugged, data):
    """Arrays have no form that plugins know; the message says what has."""
    (result,) = plugged.generate([data], OutputParams(processor="io_plugin:new"), use_tqdm=False)
    assert isinstance(result.error, InputError)
    assert "a dict" in str(result.error)
    assert type(data).__name__ in str(result.error)


@pytest.mark.parametrize(
    "options",
    [
        {"output": "classes"},
        {"bands": (1,)},
        {"nodata": 0},
        {"scale": 2.0},
        {"window": (0, 0, 4, 4)},
        {"bbox": (0, 0, 1, 1)},
        {"resampling": "bilinear"},
        {"tile": 16},
        {"overlap": 4},
        {"blend": "none"},
        {"simplify": 1.0},
        {"path": "out.tif"},
        {"processor": ("io_plugin:new", "segmentation")},
        {"processor": ("segmentation", "io_plugin:new")},
        {"indices": (0,)},
    ],
)
def test_what_a_plugin_cannot_honour_is_an_error_that_names_it(plugged, options):
    """Nothing is left out silently."""
    (param,) = options
    with pytest.raises(OptionError, match=param if param != "processor" else "alone") as caught:
        plugged.generate({"rows": 16}, OutputParams(**{"processor": "io_plugin:new", **options}), use_tqdm=False)
    assert caught.value.param == param


INPUT = ["value", "os"]
FAULTS = ["exit", "interrupt", "key"]


@pytest.mark.parametrize("fail", [*INPUT, *FAULTS])
@pytest.mark.parametrize("at", ["parse_data", "pre_process", "post_process"])
@pytest.mark.parametrize("name", ["new", "async"])
def test_whatever_a_plugin_raises_is_its_requests_error(plugged, fail, at, name):
    """Not even an exit ends anything else; what it says of an input is the input's error."""
    params = OutputParams(processor=f"io_plugin:{name}")
    failed, good = plugged.generate([{"rows": 40, "fail": fail, "at": at}, {"rows": 16}], params, use_tqdm=False)
    kind = InputError if fail in INPUT and at != "post_process" else DecodeError
    assert type(failed.error) is kind
    assert f"no {at} today" in str(failed.error)
    assert f"IO plugin {name!r}" in str(failed.error)
    assert f"no {at} today" in str(failed.error.__cause__)
    assert good.error is None


WRONG = {
    "no prompts": (DecodeError, "returned no prompts"),
    "no prompt": (DecodeError, "Prompt should be a string"),
    "nothing": (DecodeError, "returned None"),
    "dtype": (InputError, "prompt 1 of 3 of IO plugin 'new': the input's dtype is complex64"),
    "bands": (InputError, "4 bands, model 'WaterIndex' takes 6"),
    "tokens": (InputError, "takes pictures or tensors"),
}


@pytest.mark.parametrize(("fail", "expected"), WRONG.items(), ids=WRONG)
def test_what_a_plugin_does_wrong_reaches_no_engine(plugged, fail, expected):
    """Tensors that the model does not take are refused before it; the other request of the call is well."""
    kind, says = expected
    params = OutputParams(processor="io_plugin:new")
    failed, good = plugged.generate([{"rows": 40, "fail": fail}, {"rows": 16}], params, use_tqdm=False)
    assert isinstance(failed.error, kind)
    assert says in str(failed.error)
    assert good.error is None


def test_data_that_the_plugin_refuses_is_the_inputs_error(plugged):
    """Of pydantic, too; of a single input it is raised."""
    with pytest.raises(InputError, match=r"IO plugin 'new' refused its input: ValidationError"):
        through(plugged, "new", {"rows": "many"})


def test_a_plugin_that_hangs_is_left_behind(plugged, code, tmp_path):
    """Wherever it hangs, its request fails in time, its id stays taken, and others go on meanwhile."""
    code.RELEASE.clear()
    try:
        hangs = {"rows": 40, "fail": "hang", "data": str(tmp_path / "hangs")}
        inputs = [hangs | {"at": at} for at in ("parse_data", "pre_process", "post_process")]
        started = time.monotonic()
        params = OutputParams(processor="io_plugin:new")
        with settings(plugged.llm_engine.output_processor, decode_timeout_s=LIMIT_S / 2):
            *failed, good = plugged.generate([*inputs, {"rows": 40}], params, use_tqdm=False)
        assert time.monotonic() - started >= LIMIT_S / 2
        for result in failed:
            assert isinstance(result.error, DecodeError)
            assert "decode_timeout_s" in str(result.error)
        assert good.error is None
    finally:
        code.RELEASE.set()


def test_an_interrupt_leaves_nothing(plugged, code, tmp_path, monkeypatch):
    """A Ctrl-C while a plugin works comes at once."""
    code.RELEASE.clear()
    hangs = {"rows": 40, "fail": "hang", "at": "pre_process", "data": str(tmp_path / "hangs")}

    def interrupt():
        while not (tmp_path / "hangs").exists():
            time.sleep(0.01)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        started = time.monotonic()
        with (
            settings(plugged.llm_engine.output_processor, decode_timeout_s=2.0 * code.HANGS_S),
            pytest.raises(KeyboardInterrupt),
        ):
            plugged.generate(hangs, OutputParams(processor="io_plugin:new"), use_tqdm=False)
        assert time.monotonic() - started < code.HANGS_S / 2
    finally:
        code.RELEASE.set()
        thread.join()
