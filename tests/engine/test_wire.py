"""What travels from the engine's processes to the frontend, counted at the frontend's socket."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import zmq

from vllm_mmout import OutputParams
from vllm_mmout.engine import wire
from vllm_mmout.errors import OptionError

pytestmark = pytest.mark.engine

SIZE = 512
CLASSES = OutputParams(processor="segmentation", output="classes")
ALL_OF_IT = OutputParams(processor="tensor")


@pytest.fixture
def received(monkeypatch):
    """Bytes of each message that this process receives on a ZMQ socket while the test runs."""
    messages = []
    receive = zmq.Socket.recv_multipart

    def counting(self, *args, **kwargs):
        frames = receive(self, *args, **kwargs)
        messages.append(sum(memoryview(frame).nbytes for frame in frames))
        return frames

    monkeypatch.setattr(zmq.Socket, "recv_multipart", counting)
    return messages


@pytest.fixture
def tile():
    """A tile [6, 512, 512] in which no two rows are alike."""
    return np.random.default_rng(3).integers(1, 10_000, (6, SIZE, SIZE), dtype=np.uint16)


@pytest.fixture(scope="module")
def plain_network(water_index):
    """The embedded model as plain PyTorch, without an engine."""
    from safetensors.torch import load_file

    from vllm_mmout.models.embedded.water_index import WaterIndex

    network = WaterIndex(json.loads(Path(water_index, "config.json").read_text()))
    network.load_state_dict(load_file(f"{water_index}/model.safetensors"))
    network.requires_grad_(requires_grad=False)
    return lambda data: network(torch.from_numpy(data)[None])[0].numpy()


def test_class_ids_travel_as_bytes(mp_llm, received, tile, plain_network):
    """For one 512 tile of class ids the frontend receives no more than 0.55 bytes a pixel: two classes share one."""
    (result,) = mp_llm.generate(tile, CLASSES, use_tqdm=False)
    total = sum(received)
    assert SIZE * SIZE / 2 <= total <= 0.55 * SIZE * SIZE
    np.testing.assert_array_equal(result.outputs.array[0], plain_network(tile).argmax(0))


def test_a_mark_that_was_read_before_is_read_once_and_no_other_is_taken_for_it():
    """Equal tables of options give one object; True, which equals 1, is refused as it is alone."""
    from vllm.pooling_params import PoolingParams

    def read(options):
        return wire.read(PoolingParams(task="plugin", extra_kwargs={wire.KEY: options}))

    assert read({"overlap": 1}) is read({"overlap": 1})
    assert read({"overlap": 2}).overlap == 2
    with pytest.raises(OptionError, match="overlap"):
        read({"overlap": True})
    with pytest.raises(OptionError, match="overlap"):
        read({"overlap": object()})


def test_without_reduce_all_logits_travel(mp_llm, received, tile):
    """Control of the count: a processor that reduces nothing receives both logits as float32, eight bytes a pixel."""
    mp_llm.generate(tile, ALL_OF_IT, use_tqdm=False)
    assert 8 * SIZE * SIZE <= sum(received) <= 8.8 * SIZE * SIZE


def add(engine, name, tile, params):
    """Give the engine a request, decoded if there are params, raw as from ``LLM.encode`` if not."""
    from vllm.pooling_params import PoolingParams

    from vllm_mmout.models.inputs.engine_input import as_mm_input

    extra = None if params is None else wire.mark(params)
    engine.add_request(
        name,
        as_mm_input({"pixel_values": tile}, ("pixel_values",)),
        PoolingParams(task="plugin", extra_kwargs=extra),
        priority=0,
    )


def test_raw_logits_in_the_same_batch(mp_llm, tile, plain_network, monkeypatch):
    """Requests that are not marked get the raw float logits, in one step with requests that are reduced."""
    engine = mp_llm.llm_engine
    messages = []
    get_output = engine.engine_core.get_output

    def recording():
        outputs = get_output()
        messages.append([output.request_id for output in outputs.outputs])
        return outputs

    monkeypatch.setattr(engine.engine_core, "get_output", recording)
    tiles = {name: np.roll(tile, shift, axis=2) for shift, name in enumerate(("raw-1", "classes", "raw-2", "logits"))}
    params = {"classes": CLASSES, "logits": ALL_OF_IT}
    engine.engine_core.call_utility("pause_scheduler", "keep", False)  # the core queues what comes, and does no step
    for name, data in tiles.items():
        add(engine, name, data, params.get(name))
    engine.engine_core.call_utility("resume_scheduler")
    results = {}
    while engine.has_unfinished_requests():
        results.update({result.request_id: result for result in engine.step()})
    assert [len(names) for names in messages if names] == [4], "all four come from one step of the engine core"
    for name in ("raw-1", "raw-2"):
        tensor = results[name].outputs.data
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), plain_network(tiles[name]))
    np.testing.assert_array_equal(results["logits"].outputs.array, plain_network(tiles["logits"]))
    np.testing.assert_array_equal(results["classes"].outputs.array[0], plain_network(tiles["classes"]).argmax(0))


def test_encode_of_the_same_engine(mp_llm, tile, plain_network):
    """``LLM.encode`` itself gives the raw float logits, before and after a decoded request."""
    prompt = {"prompt_token_ids": [1], "multi_modal_data": {"image": tile}}
    for _ in range(2):
        (result,) = mp_llm.encode(prompt, pooling_task="plugin", use_tqdm=False)
        np.testing.assert_array_equal(result.outputs.data.numpy(), plain_network(tile), strict=True)
        mp_llm.generate(tile, CLASSES, use_tqdm=False)
