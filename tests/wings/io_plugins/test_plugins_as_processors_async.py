"""Installed IO Processor plugins as output processors of ``AsyncLLM.generate``, whose engine has its own processes."""

from __future__ import annotations

import asyncio
import io
import os
import threading
import time
from contextlib import aclosing

import io_plugins_for_tests
import numpy as np
import pytest
import pytest_asyncio
import tifffile
import water_oracle
from io_plugins_for_tests import SERVED
from model_folders import ENGINE
from quick_engines import quick_engines

from vllm_mmout import OutputParams
from vllm_mmout.errors import AbortedError, DecodeError, InputError
from vllm_mmout.wings.io_plugins.foreign.io_plugin_processor import IOPluginProcessor

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
PLUGIN = OutputParams(processor="io_plugin:new")


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """The module of the plugins, which are installed while the tests run."""
    folder = io_plugins_for_tests.install(tmp_path_factory.mktemp("plugins"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")
        import io_plugins_code

        yield io_plugins_code
        io_plugins_code.RELEASE.set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(code, water_index):
    """The engine of this module: few places, so that requests wait for each other."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    table = {"output_processor": SERVED, "decode_timeout_s": 2.0 * code.HANGS_S, "max_tiles": 3, "max_scenes": 2}
    arguments = AsyncEngineArgs(model=water_index, additional_config={"mmout": table}, **ENGINE)
    with quick_engines():
        engine = AsyncLLM.from_engine_args(arguments)
    yield engine
    engine.shutdown()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def _nothing_is_left(engine):
    """After each test no place is held, no id is taken, and the engine answers."""
    yield
    processors = engine.output_processor.binding.processors.values()
    plugins = [processor.plugin_object for processor in processors if isinstance(processor, IOPluginProcessor)]
    await until(lambda: not any(plugin.ids._used for plugin in plugins))
    assert (await last(engine, {"rows": 16})).outputs["shape"] == [2, 16, 8]
    assert (engine.mmout.budget.used_count, engine.mmout.budget.used_bytes) == (0, 0)
    assert not engine.mmout.driven
    assert engine.output_processor.get_num_unfinished_requests() == 0


async def until(true):
    """Wait for a thread; it has nothing that a task could wait for."""
    for _ in range(3000):
        if true():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never comes")


async def answers(engine, data, params=PLUGIN, request_id=None, **ways):
    """All that one call yields."""
    return [answer async for answer in engine.generate(data, params, request_id, **ways)]


async def last(engine, data, params=PLUGIN, request_id=None, **ways):
    """The result of one call."""
    return (await answers(engine, data, params, request_id, **ways))[-1]


def made(rows, seed=0):
    """The pixels that a plugin makes of its data."""
    return np.random.default_rng(seed).integers(1, 9000, (6, rows, 8), np.uint16)


@pytest.mark.parametrize("name", ["new", "old", "async", "key-words"])
async def test_a_request_through_a_plugin(engine, name):
    """Progress counts its prompts; the result has the caller's id, as the plugin had."""
    params = OutputParams(processor=f"io_plugin:{name}")
    *reports, result = await answers(engine, {"rows": 16 * 8}, params, "mine")
    array = made(16 * 8)
    expected = water_oracle.logits(array.astype(np.float32) if name == "key-words" else array)
    np.testing.assert_array_equal(np.float32(result.outputs["logits"]), expected)
    assert (result.request_id, result.outputs["id"]) == ("mine", "mine")
    assert {answer.progress.total for answer in (*reports, result)} == {8}
    assert not any(report.finished for report in reports)
    assert result.finished


async def test_requests_with_one_id_at_once_do_not_meet(engine):
    """The first has the caller's id, each other one that begins so; the plugin fails where it meets one twice."""
    results = await asyncio.gather(*(last(engine, {"rows": 40, "seed": n}, PLUGIN, "same") for n in range(6)))
    for seed, result in enumerate(results):
        np.testing.assert_array_equal(np.float32(result.outputs["logits"]), water_oracle.logits(made(40, seed)))
    names = [result.outputs["id"] for result in results]
    assert len(set(names)) == 6
    assert names.count("same") == 1
    assert all(name.startswith("same") for name in names)
    assert (await last(engine, {"rows": 16}, PLUGIN, "same")).outputs["id"] == "same"


async def test_plugins_and_ordinary_processors_share_an_engine(engine):
    """Each gets its own, in whatever order."""
    array = water_oracle.scene(2, 40, 40)
    calls = [last(engine, {"rows": 40, "seed": n}, OutputParams(processor=SERVED[1 + 4 * (n % 2)])) for n in range(6)]
    calls += [last(engine, array, OutputParams(processor="segmentation", tile=16)) for _ in range(2)]
    calls += [last(engine, array[:, :16, :16], OutputParams()) for _ in range(4)]
    results = await asyncio.gather(*calls)
    assert [result.outputs["plugin"] for result in results[:6]] == ["New", "OldPlugin"] * 3
    for result in results[6:8]:
        np.testing.assert_array_equal(result.outputs.array[0], water_oracle.logits(array).argmax(0))
    assert [result.outputs.array.shape for result in results[8:]] == [(1, 16, 16)] * 4


async def test_the_event_loop_goes_on_while_a_plugin_works(engine, code, tmp_path):
    """In ``pre_process`` and in ``post_process``; the plugin runs in no thread of the loop's."""
    for at in ("pre_process", "post_process"):
        code.RELEASE.clear()
        flag = tmp_path / at
        task = asyncio.create_task(last(engine, {"rows": 40, "fail": "hang", "at": at, "data": str(flag)}))
        await until(flag.exists)
        other = await last(engine, water_oracle.scene(3, 16, 16), OutputParams())
        assert other.outputs.count == 1
        code.RELEASE.set()
        assert (await task).outputs["shape"] == [2, 40, 8]
    assert threading.current_thread().name not in {thread for *_, thread in code.CALLS}


@pytest.mark.parametrize("at", ["pre_process", "post_process"])
@pytest.mark.parametrize("how", ["cancel", "abort"])
async def test_a_request_that_ends_early_does_not_wait_for_its_plugin(engine, code, tmp_path, at, how):
    """Cancelled or aborted, it ends at once; its id is free when the plugin has come back."""
    code.RELEASE.clear()
    flag, name = tmp_path / "hangs", f"early-{at}-{how}"  # plugins may keep what belongs to an id for ever
    data = {"rows": 40, "fail": "hang", "at": at, "data": str(flag)}
    generating = engine.generate(data, PLUGIN, name)

    async def run():
        async with aclosing(generating):
            return [answer async for answer in generating]

    task = asyncio.create_task(run())
    await until(flag.exists)
    started = time.monotonic()
    if how == "abort":
        await engine.abort(name)
        with pytest.raises(AbortedError):
            await task
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert time.monotonic() - started < code.HANGS_S / 2
    names = engine.output_processor.binding.processors["io_plugin:new"].plugin_object.ids
    assert names._used == {name}
    assert (await last(engine, {"rows": 16}, PLUGIN, name)).outputs["id"].startswith(f"{name}-")
    code.RELEASE.set()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"rows": 40, "fail": "exit", "at": "pre_process"}, DecodeError),
        ({"rows": 40, "fail": "value", "at": "parse_data"}, InputError),
        ({"rows": 40, "fail": "interrupt", "at": "post_process"}, DecodeError),
        ({"rows": 40, "fail": "bands"}, InputError),
        ({"rows": 40, "fail": "tokens"}, InputError),
        (3.5, InputError),
    ],
)
async def test_what_fails_is_its_own_requests_error(engine, data, kind):
    """What the client did wrong is an error that vLLM's server answers with 400."""
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(kind) as caught:
        await last(engine, data)
    assert not isinstance(caught.value, VLLMValidationError) or kind is InputError


async def test_more_prompts_than_a_request_may_have(engine):
    """They are counted when the plugin has made them, and none is sent."""
    with pytest.raises(InputError, match=r"into 5 prompts, and a request may have at most 4.*--mmout-max-tiles"):
        await last(engine, {"rows": 80}, max_tiles=4)
    assert (await last(engine, {"rows": 64}, max_tiles=4)).outputs["shape"] == [2, 64, 8]


async def test_a_copy_lies_in_the_folder_that_is_given(engine, code, tmp_path):
    """And is gone with the request."""
    file = io.BytesIO()
    tifffile.imwrite(file, water_oracle.scene(4, 40, 8))
    code.CALLS.clear()
    result = await last(engine, file.getvalue(), OutputParams(processor="io_plugin:paths"), folder=tmp_path)
    assert result.outputs.data_format == "b64_json"
    ((_, _, path, _),) = [call for call in code.CALLS if call[:2] == ("PathsAlone", "path")]
    assert path.startswith(f"{tmp_path}/mmout-io-plugin-")
    assert not list(tmp_path.iterdir())
