"""A text model on an engine with the plugin: the same objects, the same tokens, and none of our functions."""

from __future__ import annotations

from pathlib import Path

import engine_scripts
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SUPPORT = Path(engine_scripts.__file__).parent
PACKAGE = str(SUPPORT.parents[1] / "vllm_mmout") + "/"
FRONTEND, CORE, WORKER = "OutputProcessor.process_outputs", ":Scheduler.schedule", ":GPUModelRunner.execute_model"
"""What only that process of an engine calls while it generates."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A small Llama's folder."""
    return engine_scripts.make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Runs a script of ``engine_scripts`` with the profiler in each of its processes."""

    def run(name, model):
        folder = tmp_path_factory.mktemp("profiled")
        return engine_scripts.run(name, path=[SUPPORT / "profiled"], environment={"PROFILED": str(folder)}, model=model)

    return run


@pytest.fixture(scope="module")
def with_plugin(profiled, llama):
    """``LLM`` with the plugin."""
    return profiled("text", llama)


def functions(report):
    """All functions that were called in a process."""
    return {function for called in report["calls"].values() for function in called}


def ours(report):
    """Those of this package."""
    return {function.removeprefix(PACKAGE) for function in functions(report) if function.startswith(PACKAGE)}


def process(answer, landmark):
    """The report of the one process that called a function of this name."""
    (found,) = (
        report for report in answer["reports"].values() if any(landmark in function for function in functions(report))
    )
    return found


def assert_untouched(answer):
    frontend, core, worker = (process(answer, landmark) for landmark in (FRONTEND, CORE, WORKER))
    assert frontend is answer["reports"][str(answer["frontend"])]
    assert core is not frontend
    assert worker is not core
    for report in (frontend, core, worker):
        assert report["hooks"], "the plugin must be loaded, or the test shows nothing"
        assert not report["unprofiled"]
    assert {pid: ours(report) for pid, report in answer["reports"].items() if ours(report)} == {}


def test_output_processor_is_vllms_class(with_plugin):
    """With the plugin loaded, a text engine's output processor is of vLLM's class, the class object itself."""
    assert "vllm_mmout.engine.hooks.install" in with_plugin["modules"]
    assert with_plugin["vllms_class"]


def test_tokens_are_equal_with_and_without_the_plugin(with_plugin, llama):
    """Greedy and sampled tokens and their text are those of an engine that never loaded the plugin."""
    without = engine_scripts.run("text", environment={"VLLM_PLUGINS": ""}, model=llama)
    assert without["modules"] == []
    assert without["vllms_class"]
    assert with_plugin["said"] == without["said"]
    lengths = [[len(tokens) for tokens, _ in outputs] for outputs in with_plugin["said"]]
    assert lengths == [[16], [16], [16, 16]]
    texts = [text for outputs in with_plugin["said"] for _, text in outputs]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_none_of_our_functions_runs_in_llm(with_plugin):
    """While ``LLM`` generates text, no thread of frontend, engine core or worker enters a function of this package."""
    assert_untouched(with_plugin)


def test_none_of_our_functions_runs_in_async_llm(profiled, llama, with_plugin):
    """The same holds for ``AsyncLLM``, whose tokens are those of ``LLM``."""
    answer = profiled("text_async", llama)
    assert_untouched(answer)
    assert answer["vllms_class"]
    assert answer["said"] == with_plugin["said"]


def test_profiler_sees_our_functions_on_a_routed_model(profiled, water_index):
    """Control: with a model that has an output processor the same profiler does see us, in frontend and worker."""
    answer = profiled("routed", water_index)
    assert not answer["vllms_class"]
    assert answer["said"] == ["(1, 32, 32)"] * 2
    frontend, core, worker = (process(answer, landmark) for landmark in (FRONTEND, CORE, WORKER))
    assert "engine/request/output_router.py:RoutedOutputProcessor.process_outputs" in ours(frontend)
    decoding = {function for name, called in frontend["calls"].items() if "mmout" in name for function in called}
    assert any("processors/segmentation.py" in function for function in decoding), "threads are profiled too"
    assert "engine/worker/reduce.py:ReducingPooler.forward" in ours(worker)
    assert not core["unprofiled"]
