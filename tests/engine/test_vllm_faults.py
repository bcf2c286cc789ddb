"""Faults of vLLM that would end an engine: each shown on vLLM alone, and harmless on a bound engine."""

from __future__ import annotations

import asyncio

import engine_scripts
import numpy as np
import pytest
import torch
import vllm
from packaging.version import Version

from vllm_mmout import OutputParams
from vllm_mmout.engine import wire
from vllm_mmout.errors import AbortedError, InputError

pytestmark = pytest.mark.engine

MENDED = pytest.mark.skipif(
    Version(vllm.__version__.split("+")[0]) >= Version("0.33.0"), reason="vLLM 0.33 has mended stream_interval"
)
RNG = np.random.default_rng(11)
ECHO = OutputParams(processor="Echo")


def image():
    """A picture [6, 16, 16]."""
    return RNG.integers(1, 200, (6, 16, 16), dtype=np.uint16)


def prompt(data):
    """The prompt that vLLM takes."""
    return {"prompt_token_ids": [1], "multi_modal_data": {"image": data}}


def request_of(name):
    """A pooling request as it reaches vLLM's output processor."""
    from vllm.pooling_params import PoolingParams
    from vllm.v1.engine import EngineCoreRequest

    request = EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[1],
        mm_features=None,
        sampling_params=None,
        pooling_params=PoolingParams(task="plugin"),
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    request.external_req_id = name
    return request


def vllms_output_processor(**arguments):
    """An output processor of vLLM's with one pooling request in it."""
    from vllm.v1.engine.output_processor import OutputProcessor

    processor = OutputProcessor(None, log_stats=False, **arguments)
    processor.add_request(request_of("a"), None)
    return processor


# 1. A pooling request with stream_interval > 1 dies on an assert.


@MENDED
def test_stream_interval_fails_in_vllm():
    """A stream_interval above 1 makes vLLM assert a detokenizer, which pooling requests have not."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    output = EngineCoreOutput("a", [], pooling_output=torch.ones(2), finish_reason=FinishReason.STOP)
    with pytest.raises(AssertionError):
        vllms_output_processor(stream_interval=4).process_outputs([output])
    (result,) = vllms_output_processor(stream_interval=1).process_outputs([output]).request_outputs
    assert result.outputs.data.tolist() == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "expected"),
    [
        pytest.param({"output_processor": "none"}, {"encode": "AssertionError"}, marks=MENDED),
        ({}, {"encode": "torch.Size([2, 32, 32])", "generate": "(1, 32, 32)"}),
    ],
    ids=["without", "bound"],
)
def test_stream_interval_of_an_engine(water_index, table, expected):
    """The same in an engine: without the hook ``encode`` dies, on a bound engine raw and decoded outputs come."""
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    answer = engine_scripts.run("stream_interval", environment=environment, model=water_index, table=table)
    del answer["log"]
    assert answer == expected


# 2. An engine that ends a pooling request (ABORT, ERROR) sends no tensor with it, which vLLM takes for text.


@pytest.mark.parametrize("reason", ["ABORT", "ERROR"])
def test_ends_without_a_tensor_fail_in_vllm(reason):
    """An end without a tensor makes vLLM assert a detokenizer; that ends the frontend's handler task."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    output = EngineCoreOutput("a", [], finish_reason=FinishReason[reason])
    with pytest.raises(AssertionError):
        vllms_output_processor().process_outputs([output])


@pytest.fixture(scope="module")
def run(make_async_llm):
    """Runs scenarios, one after another, on one ``AsyncLLM``."""
    with asyncio.Runner() as runner:

        async def start():
            return make_async_llm()

        engine = runner.run(start())
        yield lambda scenario: runner.run(asyncio.wait_for(scenario(engine), 120))
        engine.shutdown()


async def one(engine, data, params):
    """The result of a request, or its error."""
    try:
        async for result in engine.generate(data, params):
            return result
    except Exception as error:  # noqa: BLE001 - the test looks at whatever it is
        return error


async def raw(engine, data):
    """The tensor that vLLM's own ``encode`` gives."""
    from vllm.pooling_params import PoolingParams

    async for result in engine.encode(prompt(data), PoolingParams(task="plugin"), f"raw-{RNG.integers(2**60)}"):
        return result.outputs.data
    return None


async def until(condition):
    while not condition():  # noqa: ASYNC110 - the state of an engine has no event
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_requests_that_the_engine_aborts(run):
    """On a bound engine those requests end, the marked ones with an AbortedError, and the engine goes on."""

    async def scenario(engine):
        await engine.pause_generation(mode="keep")
        marked = [asyncio.create_task(one(engine, image(), ECHO)) for _ in range(3)]
        unmarked = asyncio.create_task(raw(engine, image()))
        await until(lambda: engine.output_processor.get_num_unfinished_requests() == 4)
        await engine.pause_generation(mode="abort")
        errors, tensor = await asyncio.gather(*marked), await unmarked
        await engine.resume_generation()
        after = await one(engine, image(), ECHO)
        return errors, tensor, after, engine.output_processor.get_num_unfinished_requests(), engine.mmout.credits

    errors, tensor, after, unfinished, credits_ = run(scenario)
    assert [type(error) for error in errors] == [AbortedError] * 3
    assert tensor.numel() == 0
    assert after.outputs[0] == (2, 16, 16)
    assert unfinished == 0
    assert credits_.used_count == 0
    assert credits_.used_bytes == 0


def test_requests_that_the_engine_fails(llm):
    """The same of ``LLM`` for an ERROR: the request comes back with its error, and the others with their results."""
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    engine = llm.llm_engine
    process = engine.output_processor.process_outputs

    def failing(outputs, *args, **kwargs):
        for place, output in enumerate(outputs):
            if output.request_id in doomed:
                outputs[place] = EngineCoreOutput(output.request_id, [], finish_reason=FinishReason.ERROR)
        return process(outputs, *args, **kwargs)

    doomed = set()
    with pytest.MonkeyPatch.context() as patch:
        add = engine.output_processor.add_request

        def adding(request, *args, **kwargs):
            if not doomed:
                doomed.add(request.request_id)
            return add(request, *args, **kwargs)

        patch.setattr(engine.output_processor, "add_request", adding, raising=False)
        patch.setattr(engine.output_processor, "process_outputs", failing, raising=False)
        results = llm.generate([image(), image()], ECHO, use_tqdm=False)
    assert "the engine ended the request with an error" in str(results[0].error)
    assert results[1].outputs[0] == (2, 16, 16)
    assert not engine.has_unfinished_requests()


# 3. A request of nothing but tokens, to a model that takes raw tensors: a forward that raises ends the engine core.


@pytest.mark.slow
def test_token_only_request_to_an_engine_without_the_hook_is_answered_with_nothing(water_index):
    """Without the hook the request goes through to the adapter, which raises nothing: the next request is answered."""
    answer = engine_scripts.run("token_only", model=water_index, table={"output_processor": "none"})
    assert (answer["tokens"], answer["image"]) == ("torch.Size([0])", "torch.Size([2, 32, 32])")


def test_token_only_request_is_refused_by_a_bound_engine(mp_llm):
    """A bound engine refuses it as a client's mistake, which names the remedy, and answers the next one."""
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(InputError, match="multi_modal_data") as caught:
        mp_llm.encode({"prompt_token_ids": [1]}, pooling_task="plugin", use_tqdm=False)
    assert isinstance(caught.value, VLLMValidationError)
    assert not mp_llm.llm_engine.has_unfinished_requests()
    (result,) = mp_llm.encode(prompt(image()), pooling_task="plugin", use_tqdm=False)
    assert result.outputs.data.shape == (2, 16, 16)


@pytest.mark.slow
def test_token_only_request_to_async_llm(run):
    """The same of ``AsyncLLM``, for a marked request too."""
    from vllm.pooling_params import PoolingParams

    async def scenario(engine):
        errors = []
        for number, extra in enumerate((None, wire.mark(ECHO))):
            params = PoolingParams(task="plugin", extra_kwargs=extra)
            with pytest.raises(InputError, match="multi_modal_data") as caught:
                async for _ in engine.encode({"prompt_token_ids": [1]}, params, f"tokens-{number}"):
                    pass
            errors.append(caught.value)
        return errors, await raw(engine, image()), engine.output_processor.get_num_unfinished_requests()

    errors, tensor, unfinished = run(scenario)
    assert len(errors) == 2
    assert tensor.shape == (2, 16, 16)
    assert unfinished == 0


# 4. A batch whose tiles differ: see test_mixed_batches.py.
