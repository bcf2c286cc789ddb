"""The IO Processor plugin ``mmout`` with ``AsyncLLM``: one prompt that names a request, as vLLM's server drives it."""

from __future__ import annotations

import asyncio
import base64
import io
from contextlib import suppress

import numpy as np
import pytest
import pytest_asyncio
from model_folders import ENGINE
from quick_engines import quick_engines
from scenes_for_tests import TILE, classes, pixels, write

from vllm_mmout.errors import InputError, OptionError

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels(52)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder that requests may name files of."""
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def scene(folder):
    """A scene in it."""
    return write(folder / "scene.tif", ARRAY)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(water_index, folder):
    """The engine of this module."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = {"io_processor_plugin": "mmout", "allowed_local_media_path": str(folder), **ENGINE}
    with quick_engines():
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=water_index, **arguments))
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def plugin(engine):
    """The plugin as vLLM finds it."""
    from vllm.plugins.io_processors import get_io_processor

    return get_io_processor(engine.vllm_config, engine.renderer, engine.model_config.io_processor_plugin)


async def answered(engine, plugin, scene, request_id="same", **fields):
    """What the plugin answers by vLLM's interface."""
    asked = plugin.parse_data({"data": str(scene), "data_format": "path", **fields})
    prompt = plugin.pre_process(asked, request_id)
    params = plugin.merge_pooling_params()
    (rendered,) = await engine.renderer.render_cmpl_async([prompt])
    outputs = [output async for output in engine.encode(rendered, params, request_id)]
    return plugin.post_process(outputs, request_id)


def read(answer):
    """The pixels of an answer."""
    with rasterio.open(io.BytesIO(base64.b64decode(answer.data))) as file:
        return file.read()


async def until(holds):
    """Wait for what comes with time."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what tests wait for says nothing when it comes
            await asyncio.sleep(0.01)


def assert_nothing_left(engine):
    """No request and no tile is held."""
    assert not engine.mmout.driven
    assert not engine.output_processor.has_unfinished_requests()


async def test_requests_of_one_id_in_flight(engine, plugin, scene):
    """Each of several gets its own result, though vLLM calls them all the same."""
    windows = [[0, 0, 40, 50], [10, 20, 50, 60], [30, 30, 45, 60], [0, 0, 75, 90]]
    options = [{"window": window, "tile": TILE} for window in windows]
    answers = await asyncio.gather(*(answered(engine, plugin, scene, **option) for option in options))
    for (row, col, height, width), answer in zip(windows, answers, strict=True):
        np.testing.assert_array_equal(read(answer), classes(ARRAY)[:, row : row + height, col : col + width])
        assert answer.request_id == "same"
    assert_nothing_left(engine)


async def test_nothing_is_read_before_the_engine_runs_it(engine, plugin, folder):
    """``pre_process`` is called on the event loop: a file that is not there shows when the request is run."""
    prompt = plugin.pre_process(plugin.parse_data({"data": str(folder / "absent.tif"), "data_format": "path"}))
    assert prompt["prompt_token_ids"] == [1]
    with pytest.raises(InputError, match=r"there is no file 'absent\.tif'"):
        async for _ in engine.encode(prompt, plugin.merge_pooling_params(), "absent"):
            pass


async def test_a_prompt_names_its_request_without_params(engine, plugin, scene):
    """A caller with params of its own hands the prompt over as it was made."""
    from vllm import PoolingParams

    first, second = (
        plugin.pre_process(plugin.parse_data({"data": str(scene), "data_format": "path", "window": window}))
        for window in ([0, 0, 30, 30], [5, 5, 20, 20])
    )
    for prompt, place in ((first, np.s_[:, :30, :30]), (second, np.s_[:, 5:25, 5:25])):
        (output,) = [output async for output in engine.encode(prompt, PoolingParams(task="plugin"), "own")]
        np.testing.assert_array_equal(read(output.outputs), classes(ARRAY)[place])


async def test_what_is_no_name_names_nothing(engine, plugin, scene):
    """A client can send the key and no object of ours: its prompt is one of tokens, which this model refuses."""
    from vllm import PoolingParams

    params = PoolingParams(task="plugin", extra_kwargs={"mmout_request": {"data": str(scene)}})
    with pytest.raises(InputError, match="takes pictures or tensors"):
        async for _ in engine.encode({"prompt_token_ids": [1], "mmout_request": str(scene)}, params, "forged"):
            pass


async def test_the_rules_of_a_server_hold(engine, plugin, tmp_path):
    """Files outside the allowed folder, addresses of this machine, and where to write, are refused."""
    outside = write(tmp_path / "outside.tif", ARRAY)
    for data, data_format in ((outside, "path"), ("http://127.0.0.1:9/a.tif", "url"), (outside.as_uri(), "url")):
        with pytest.raises(InputError, match=r"not within the folder|not of the public Internet"):
            await answered(engine, plugin, data, data_format=data_format)
    with pytest.raises(OptionError, match="/v1/scenes"):
        await answered(engine, plugin, outside, out_data_format="path", out_path=str(tmp_path))


async def test_who_goes_away_leaves_nothing(engine, plugin, folder, scene):
    """A request that is cancelled while its tiles run ends with all of them; the next one is answered."""
    large = write(folder / "large.tif", pixels(53, 1000, 1000))
    running = asyncio.ensure_future(answered(engine, plugin, large, tile=16))
    await until(lambda: engine.mmout.driven and engine.output_processor.has_unfinished_requests())
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await until(lambda: not engine.output_processor.has_unfinished_requests())
    np.testing.assert_array_equal(read(await answered(engine, plugin, scene)), classes(ARRAY))
    assert_nothing_left(engine)
