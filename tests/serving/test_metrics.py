"""Metrics of the server, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import pytest_asyncio
import yaml
from metrics_page import page, read
from pages import all_blocks
from processors_for_tests import RELEASE
from prometheus_client.parser import text_string_to_metric_families
from scenes_for_tests import TILE, pixels
from vllm.v1.metrics.prometheus import unregister_vllm_metrics
from water_oracle import scene

from vllm_mmout import OutputParams
from vllm_mmout.engine.observer import KINDS, SILENT
from vllm_mmout.engine.scene import pace
from vllm_mmout.errors import AbortedError, MMOutError
from vllm_mmout.serving.metrics import Metrics, collectors, observe

pytestmark = pytest.mark.engine
on_the_loop = pytest.mark.asyncio(loop_scope="module")
DEADLINE = 120
ECHO = OutputParams(processor="Echo")
NAMES = {
    "mmout:decode_seconds": "histogram",
    "mmout:decodes_pending": "gauge",
    "mmout:decodes_pending_bytes": "gauge",
    "mmout:tiles": "counter",
    "mmout:pixels": "counter",
    "mmout:failures": "counter",
    "mmout:tiles_waiting": "gauge",
    "mmout:seconds_waiting": "gauge",
}


PENDING_OR_WAITING = [name for name in NAMES if "pending" in name or "waiting" in name]


async def answer(engine, data, params=ECHO, request_id=None):
    """The output of one request."""
    return [result async for result in engine.generate(data, params, request_id)][-1].outputs


async def until(condition):
    """Wait for a condition."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.002)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(make_async_llm):
    """The engine of this module."""
    engine = make_async_llm(decode_timeout_s=DEADLINE)
    yield engine
    RELEASE.set()
    engine.shutdown()


@pytest.fixture
def model(engine, request):
    """A served name that no other test has, observed."""
    RELEASE.clear()
    observe(engine, request.node.name)
    yield request.node.name
    RELEASE.set()
    engine.output_processor.observer = SILENT
    assert not read(page(*PENDING_OR_WAITING), model_name=request.node.name)


@on_the_loop
async def test_all_metrics_are_there_from_the_start(model):
    """Each with its type and its words, and each series that may come at 0: rates need no first event."""
    families = {family.name: family for family in text_string_to_metric_families(page())}
    assert {name: families[name].type for name in NAMES} == NAMES
    assert all(families[name].documentation for name in NAMES)
    assert read(page(), model_name=model) == {}
    samples = [sample for name in NAMES for sample in families[name].samples if sample.labels["model_name"] == model]
    assert {sample.name for sample in samples if not sample.name.endswith("_created")} == {
        *(f"mmout:decode_seconds_{part}" for part in ("bucket", "count", "sum")),
        "mmout:decodes_pending",
        "mmout:decodes_pending_bytes",
        "mmout:tiles_total",
        "mmout:pixels_total",
        "mmout:failures_total",
        "mmout:tiles_waiting",
        "mmout:seconds_waiting",
    }
    failures = [sample.labels for sample in samples if sample.name == "mmout:failures_total"]
    assert {labels["kind"] for labels in failures} == set(KINDS)
    assert {"", "Echo", "DecodeRaises"} < {labels["processor"] for labels in failures}


def test_what_docs_scale_by_is_a_metric_of_ours():
    """The object of KEDA asks Prometheus for one, and has what its scaler needs."""
    (block,) = [block for block in all_blocks("yaml") if "ScaledObject" in block.text]
    (trigger,) = yaml.safe_load(block.text)["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
    (name,) = re.findall(r"mmout:\w+", trigger["metadata"]["query"])
    assert NAMES[name] == "gauge"
    assert float(trigger["metadata"]["threshold"]) > 0


@on_the_loop
async def test_decodes_are_counted_by_processor(engine, model):
    """Their number, their sum, and buckets that add up."""
    for seed in range(3):
        await answer(engine, scene(seed))
    await answer(engine, scene(4), OutputParams(processor="DecodeSleeps"))
    found = read(page(), model_name=model)
    assert found["mmout:decode_seconds_count Echo"] == found["mmout:decode_seconds_bucket +Inf Echo"] == 3
    assert found["mmout:decode_seconds_count DecodeSleeps"] == 1
    assert found["mmout:decode_seconds_sum DecodeSleeps"] >= 0.3
    assert "mmout:decode_seconds_bucket 0.25 DecodeSleeps" not in found
    assert not [name for name in found if "failures" in name or "tiles" in name]


@on_the_loop
async def test_tiles_and_pixels_of_a_scene_are_counted(engine, model, monkeypatch):
    """A scene adds its tiles, its pixels, and a decode for each block. Here a block is a single tile."""
    monkeypatch.setattr(pace, "BLOCK_S", 0.0)
    (await answer(engine, pixels(1), OutputParams(tile=TILE, overlap=4))).close()
    found = read(page(), model_name=model)
    assert (found["mmout:tiles_total"], found["mmout:pixels_total"]) == (12, 75 * 90)
    assert found["mmout:decode_seconds_count segmentation"] == 12


@on_the_loop
async def test_tiles_wait_until_they_are_done(engine, model):
    """Those of a scene, with the seconds that they take when some are done."""
    seen = []
    async for result in engine.generate(pixels(2, 128, 128), OutputParams(tile=16)):
        last, found = result, read(page(*PENDING_OR_WAITING), model_name=model)
        seen.append([found.get(f"mmout:{what}_waiting", 0) for what in ("tiles", "seconds")])
    last.outputs.close()
    assert all(0 < seconds < DEADLINE for tiles, seconds in seen[1:-1] if tiles)
    waiting = [tiles for tiles, _ in seen]
    assert waiting == sorted(waiting, reverse=True)
    assert 64 >= waiting[0] > waiting[-2]  # a tile that was just done may still be counted
    assert any(0 < tiles < 64 for tiles in waiting)
    assert seen[-1] == [0, 0]


@on_the_loop
async def test_failures_are_counted_by_processor_and_kind(engine, model):
    """Those of the engine, and those that a route refuses before; unknown names make no new series."""
    for data, processor in (("/nowhere.tif", "Echo"), (scene(1), "DecodeRaises"), (scene(1), "ReduceRaises")):
        with pytest.raises(MMOutError):
            await answer(engine, data, OutputParams(processor=processor))
    observer = engine.output_processor.observer
    observer.failed("", "InputError")
    before = len(page().splitlines())
    observer.failed("from the client", "/etc/passwd")
    assert len(page().splitlines()) == before
    assert {name: value for name, value in read(page(), model_name=model).items() if "_total" in name} == {
        "mmout:failures_total InputError ": 2,
        "mmout:failures_total DecodeError DecodeRaises": 1,
        "mmout:failures_total ReduceError ReduceRaises": 1,
        "mmout:failures_total other ": 1,
    }


@on_the_loop
@pytest.mark.parametrize("how", ["result", "aborted", "cancelled"])
async def test_pending_decodes_are_seen_while_they_are(engine, model, how):
    """Two that are decoded, with the bytes of their tensors; none of them once they have ended."""
    params = OutputParams(processor="DecodeWaits")
    tasks = [asyncio.create_task(answer(engine, scene(seed), params, f"{model}-{seed}")) for seed in range(2)]
    await until(lambda: len(engine.output_processor.pending) == 2)
    found = read(page(*PENDING_OR_WAITING), model_name=model)
    assert found["mmout:decodes_pending"] == found["mmout:tiles_waiting"] == 2
    tensors = 2 * 24 * 20 * 2 * 4
    assert tensors <= found["mmout:decodes_pending_bytes"] < tensors + 2048
    if how == "result":
        RELEASE.set()
    for seed, task in enumerate(tasks):
        if how == "aborted":
            await engine.abort(f"{model}-{seed}")
        elif how == "cancelled":
            task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = {"result": tuple, "aborted": AbortedError, "cancelled": asyncio.CancelledError}
    assert [type(one) for one in ended] == [kinds[how]] * 2
    found = read(page(*PENDING_OR_WAITING, "mmout:failures_total"), model_name=model)
    assert not [name for name in found if "pending" in name]
    assert found.get("mmout:failures_total AbortedError ", 0) == (0 if how == "result" else 2)


@on_the_loop
async def test_a_further_engine_of_the_process(engine, model):
    """It has its own series beside those of the first, which keep their values."""
    await answer(engine, scene(1))
    observe(engine, f"{model}-second")
    await answer(engine, scene(2))
    observe(engine, model)
    await answer(engine, scene(3))
    assert read(page(), model_name=model)["mmout:decode_seconds_count Echo"] == 2
    assert read(page(), model_name=f"{model}-second")["mmout:decode_seconds_count Echo"] == 1


@on_the_loop
async def test_vllms_clearing_of_its_metrics_leaves_ours(engine, model):
    """Its own it takes out of the registry whenever an engine is made."""
    await answer(engine, scene(1))
    unregister_vllm_metrics()
    assert read(page(), model_name=model)["mmout:decode_seconds_count Echo"] == 1
    assert collectors() is collectors()


def client(router, *, log_stats=True):
    """What a server has of an engine."""
    return SimpleNamespace(output_processor=router, log_stats=log_stats)


@on_the_loop
async def test_who_does_not_want_statistics_gets_none(engine):
    """As with vLLM's own metrics under --disable-log-stats."""
    router = engine.output_processor
    assert observe(client(router, log_stats=False), "quiet") is SILENT
    assert router.observer is SILENT
    assert "quiet" not in page()
    try:
        assert isinstance(observe(client(router), "loud"), Metrics)
        assert "loud" in page()
    finally:
        router.observer = SILENT


COUNTING = """
import os, sys
from vllm_mmout.serving.metrics import Metrics
metrics = Metrics("model", ["mask"])
metrics.waits(100); metrics.waits(50); metrics.settled(50); metrics.decoded("mask", 0.2); metrics.tile(7)
metrics.failed("mask", "DecodeError")
print("counted", flush=True)
sys.stdin.read()
"""
READING = """
import json
from prometheus_client import generate_latest
from vllm.v1.metrics.prometheus import get_prometheus_registry
print(json.dumps(generate_latest(get_prometheus_registry()).decode()))
"""


@pytest.mark.slow
def test_several_api_servers_add_up(tmp_path):
    """With --api-server-count 2 each process counts, and either shows the sum; what is pending is of those that live.

    vLLM has the processes write to one folder and reads it with the registry that is used here.
    """
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    servers = [subprocess.Popen([sys.executable, "-c", COUNTING], **pipes) for _ in range(2)]
    try:
        assert [server.stdout.readline() for server in servers] == ["counted\n"] * 2
        answered = subprocess.run(
            [sys.executable, "-c", READING], env=environment, capture_output=True, text=True, check=True
        )
    finally:
        for server in servers:
            server.communicate()
    found = read(json.loads(answered.stdout.splitlines()[-1]))
    assert {name: value for name, value in found.items() if "bucket" not in name} == {
        "mmout:decode_seconds_count model mask": 2,
        "mmout:decode_seconds_sum model mask": 0.4,
        "mmout:decodes_pending model": 2,
        "mmout:decodes_pending_bytes model": 200,
        "mmout:tiles_total model": 2,
        "mmout:pixels_total model": 14,
        "mmout:failures_total DecodeError model mask": 2,
    }
