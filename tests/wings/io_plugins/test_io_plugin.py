"""The IO Processor plugin ``mmout`` in Python: ``LLM.encode`` answers TerraTorch's form of a request."""

from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from engine_scripts import make_llama
from model_folders import ENGINE, engine_here, vllm_starts
from scenes_for_tests import TILE, classes, pixels, probabilities, write

from vllm_mmout.errors import InputError, MMOutError, OptionError

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels(51)
PLACE = {"crs": "EPSG:32614", "transform": rasterio.Affine(30, 0, 5, 0, -30, 7)}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A scene with a place."""
    return write(tmp_path_factory.mktemp("scene") / "scene.tif", ARRAY, **PLACE)


def naming(folder, water_index, plugin):
    """A copy of the embedded model's folder whose ``config.json`` names a plugin."""
    shutil.copytree(water_index, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "io_processor_plugin": plugin}))
    return str(folder)


@pytest.fixture(scope="module")
def plugin_llm(water_index, tmp_path_factory):
    """An ``LLM`` whose folder names the plugin."""
    return engine_here(naming(tmp_path_factory.mktemp("model") / "water", water_index, "mmout"))


def encoded(llm, data, **fields):
    """The plugin's answer."""
    (output,) = llm.encode({"data": {"data": str(data), **fields}}, pooling_task="plugin", use_tqdm=False)
    assert output.finished
    return output.outputs


def opened(answer):
    """What rasterio finds in an answer."""
    assert answer.data_format == "b64_json"
    return rasterio.open(io.BytesIO(base64.b64decode(answer.data)))


def test_the_answer_is_terratorchs(plugin_llm, scene):
    """A GeoTIFF in base64 where the scene lies, with all fields of the stock plugin's answer."""
    answer = encoded(plugin_llm, scene, data_format="path", image_format="tiff", out_data_format="b64_json")
    assert set(answer.model_dump()) == {"data_format", "data", "request_id"}
    with opened(answer) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY))
        assert (file.crs, file.transform, file.nodata) == (PLACE["crs"], PLACE["transform"], 255)


@pytest.mark.parametrize("data_format", ["path", "b64_json", "url"])
def test_an_input_is_named_or_sent(plugin_llm, scene, data_format):
    """A path, base64 or an address, a ``file://`` one too, as the stock plugin opens them; cut into tiles as asked."""
    data = {"path": scene, "b64_json": base64.b64encode(scene.read_bytes()).decode(), "url": scene.as_uri()}
    answer = encoded(plugin_llm, data[data_format], data_format=data_format, tile=TILE, overlap=8)
    with opened(answer) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY))


def test_options_of_a_request(plugin_llm, scene):
    """``indices`` count from 0; every option of ``OutputParams`` may stand beside them."""
    with opened(encoded(plugin_llm, scene, data_format="path", indices=[5, 4, 3, 2, 1, 0])) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY[::-1]))
    fields = {"window": [5, 10, 20, 30], "output": "probabilities"}
    with opened(encoded(plugin_llm, scene, data_format="path", **fields)) as file:
        np.testing.assert_allclose(file.read(), probabilities(ARRAY)[:, 5:25, 10:40], atol=1e-5)
    answer = encoded(plugin_llm, scene, data_format="path", output="areas")
    assert {entry["name"] for entry in json.loads(base64.b64decode(answer.data))["classes"]} >= {"land", "water"}
    answer = encoded(plugin_llm, scene, data_format="path", image_format="png")
    assert base64.b64decode(answer.data).startswith(b"\x89PNG")


def test_several_files_are_one_input(plugin_llm, tmp_path):
    """A file a band, in the model's order or by the bands' names."""
    bands = ["blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2"]
    paths = [str(write(tmp_path / f"{number}.tif", ARRAY[number : number + 1], **PLACE)) for number in range(6)]
    for data in (paths, dict(reversed(list(zip(bands, paths, strict=True))))):
        (output,) = plugin_llm.encode(
            {"data": {"data": data, "data_format": "path"}}, pooling_task="plugin", use_tqdm=False
        )
        with opened(output.outputs) as file:
            np.testing.assert_array_equal(file.read(), classes(ARRAY))


@pytest.mark.parametrize("name", ["", "water.tif"], ids=["folder", "file"])
@pytest.mark.parametrize("tile", [None, TILE], ids=["one-forward", "tiles"])
def test_a_result_is_written(plugin_llm, scene, tmp_path, name, tile):
    """With ``out_data_format`` "path" the answer names the file, in a folder or as it was called."""
    answer = encoded(
        plugin_llm, scene, data_format="path", out_data_format="path", out_path=str(tmp_path / name), tile=tile
    )
    assert answer.data_format == "path"
    assert answer.data == str(tmp_path / (name or "scene.tif"))
    with rasterio.open(answer.data) as file:
        np.testing.assert_array_equal(file.read(), classes(ARRAY))


def test_a_result_without_a_place_goes_where_terratorchs_goes(plugin_llm, scene, tmp_path, monkeypatch):
    """To the folder of its configuration, under a name that no other file has."""
    monkeypatch.setenv("TERRATORCH_SEGMENTATION_IO_PROCESSOR_CONFIG", json.dumps({"output_path": str(tmp_path)}))
    answers = [
        encoded(plugin_llm, scene, data_format="path", out_data_format="path", image_format="", indices=[])
        for _ in range(2)
    ]
    assert {Path(answer.data) for answer in answers} == set(tmp_path.glob("*.tif"))
    assert len({answer.data for answer in answers}) == 2
    for answer in answers:
        assert answer.data_format == "path"
        with rasterio.open(answer.data) as file:
            np.testing.assert_array_equal(file.read(), classes(ARRAY))


def test_mistakes_are_errors_of_their_own(plugin_llm, scene, tmp_path):
    """Each names what is wrong; the engine answers the next request."""
    few = write(tmp_path / "few.tif", ARRAY[:3])
    for data, fields, kind, words in (
        (5, {}, OptionError, "data must be an object"),
        ({"data": 5, "data_format": "path"}, {}, OptionError, "must be a text"),
        (tmp_path / "absent.tif", {}, InputError, "absent.tif"),
        (few, {}, InputError, "has 3 bands"),
        (scene, {"wndow": [0, 0, 1, 1]}, OptionError, "did you mean 'window'"),
        (scene, {"output": "nothing"}, OptionError, "has no output 'nothing'"),
        (scene, {"out_data_format": "path", "out_path": str(scene)}, MMOutError, "over its own input"),
    ):
        given = data if isinstance(data, int | dict) else {"data": data, "data_format": "path", **fields}
        with pytest.raises(kind, match=words):
            plugin_llm.encode({"data": given}, pooling_task="plugin", use_tqdm=False)
    assert not plugin_llm.llm_engine.has_unfinished_requests()
    assert encoded(plugin_llm, scene, data_format="path").data_format == "b64_json"


def test_what_is_not_the_plugins_is_as_without_it(plugin_llm, llm):
    """Raw prompts of ``encode`` give raw tensors, ``generate`` results; the task of ``data`` is asked for."""
    prompt = {"prompt_token_ids": [1], "multi_modal_data": {"image": ARRAY}}
    (raw,) = plugin_llm.encode(prompt, pooling_task="plugin", use_tqdm=False)
    (without,) = llm.encode(prompt, pooling_task="plugin", use_tqdm=False)
    np.testing.assert_array_equal(raw.outputs.data, without.outputs.data)
    (result,) = plugin_llm.generate(ARRAY, use_tqdm=False)
    np.testing.assert_array_equal(result.outputs.array, classes(ARRAY))
    with pytest.raises(ValueError, match="only supported for the 'plugin' pooling task"):
        plugin_llm.encode({"data": {}}, pooling_task="embed", use_tqdm=False)


def test_vllms_classes_are_as_they_were(plugin_llm):
    """What is replaced is replaced on the objects of this engine alone."""
    from vllm.entrypoints.pooling.pooling.io_processor import PluginWithIOProcessorPlugins

    processor = plugin_llm.pooling_io_processors["plugin"]
    assert type(processor) is not PluginWithIOProcessorPlugins
    assert isinstance(processor, PluginWithIOProcessorPlugins)
    assert PluginWithIOProcessorPlugins.get_request_factory_online.__module__.startswith("vllm.")


def test_a_plugin_that_cannot_work_is_refused(tmp_path, water_index):
    """Before anything of the engine is started: a model without a processor; a plugin that is not installed.

    The argument wins over ``config.json``.
    """
    from vllm import LLM

    llama = make_llama(tmp_path / "llama")
    small = {"max_model_len": 64, "dtype": "float32", "enforce_eager": True, "runner": "pooling", "convert": "embed"}
    with vllm_starts("0"):
        with pytest.raises(
            OptionError, match="the IO Processor plugin 'mmout' returns the results of a model's output"
        ):
            LLM(str(llama), io_processor_plugin="mmout", **small, **ENGINE)
        ours, unknown = (naming(tmp_path / plugin, water_index, plugin) for plugin in ("mmout", "mmot"))
        with pytest.raises(OptionError, match=r"io_processor_plugin is 'other', .* \(known: .*mmout"):
            LLM(ours, io_processor_plugin="other", **ENGINE)
        with pytest.raises(
            OptionError, match=r'"io_processor_plugin" in config\.json is \'mmot\', .* \(known: .*mmout'
        ):
            LLM(unknown, **ENGINE)
