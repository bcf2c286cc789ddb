"""Requests that fail, sleep or are cancelled beside others, through ``AsyncLLM`` with its engine in another process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import numpy as np
import pytest
import pytest_asyncio
from processors_for_tests import RELEASE, hold
from water_oracle import echo, leftovers, logits, scene

from vllm_mmout import OutputParams
from vllm_mmout.errors import AbortedError, DecodeError, InputError, MMOutError, OptionError, ReduceError

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
]

THREADS_OF_OTHERS = set()
"""Threads that ran before this module's engine was made."""

DEADLINE = 120
"""Seconds that no step of these tests takes, on whatever machine."""

KINDS = ("reduce raises", "decode raises", "decode sleeps", "cancelled in forward", "cancelled in decode", "good")

PROCESSORS = {
    "reduce raises": "ReduceRaisesItsName",
    "decode raises": "DecodeRaisesItsName",
    "decode sleeps": "DecodeSleeps",
    "cancelled in forward": "ReduceHolds",
    "cancelled in decode": "DecodeWaits",
    "good": "Echo",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(make_async_llm):
    """The engine of this module; more decode threads than decoders that wait, which therefore hold up nobody."""
    THREADS_OF_OTHERS.update(threading.enumerate())
    engine = make_async_llm(decode_threads=16, decode_timeout_s=DEADLINE)
    yield engine
    engine.shutdown()


@pytest.fixture(autouse=True)
def decoders_wait():
    """Decoders that wait do so until a test lets them go; at its end all go."""
    RELEASE.clear()
    yield
    RELEASE.set()


async def until(condition, what):
    """Wait for a condition."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.002)
    assert condition(), what


async def answer(engine, data, params=None, request_id=None):
    """The outputs of one request, which yields once."""
    results = [result async for result in engine.generate(data, params, request_id)]
    assert len(results) == 1
    assert results[0].finished
    return results[0].outputs


def name_of(number):
    """The nodata value that names a request to its processors; no pixel has it."""
    return float(-1 - number)


def in_engine(engine, request_id):
    """Whether the engine has the request and has not answered it."""
    router = engine.output_processor
    ids = router.external_req_ids.get(request_id, [])
    return any(internal in router.request_states for internal in ids) and not in_decode(engine, request_id)


def in_decode(engine, request_id):
    """Whether the engine is done with the request and its result is not delivered."""
    return any(entry.state.external_req_id == request_id for entry in engine.output_processor.pending.values())


async def in_forward(engine, request_id, name):
    """Wait until the engine's step works on the request, which it cannot end before it is let go."""
    await until(hold(name)[0].exists, f"{request_id} is in a step")
    assert in_engine(engine, request_id)


def let_go(name):
    """Let a held step go on."""
    hold(name)[1].touch()


async def assert_idle(engine):
    """Nothing is left of any request: no state, no decode, no credit, nobody who waits for one."""
    credits = engine.mmout.credits
    await until(lambda: not engine.output_processor.pool._running, "no decoder runs")
    assert leftovers(engine.output_processor) == {}
    assert (credits.used_count, credits.used_bytes, len(credits._waiting)) == (0, 0, 0)
    assert not engine.output_processor.has_unfinished_requests()


async def assert_answers(engine, seed=999):
    """The engine still gives the right answer."""
    assert await answer(engine, scene(seed), OutputParams(processor="Echo")) == echo(scene(seed))
    await assert_idle(engine)


async def cancelled_task(task):
    """Cancel a task and wait for its end."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestSixtyFourAtOnce:
    """Sixty-four requests of six kinds, each with an input of its own."""

    async def test_every_caller_gets_its_own(self, engine):
        """Everyone gets the right answer or their own error; nothing is left; the engine answers afterwards."""
        kinds = [KINDS[number % len(KINDS)] for number in range(64)]
        inputs = [scene(number, 16 + number % 3, 16 + number % 5) for number in range(64)]
        expected = [echo(data) for data in inputs]
        assert len(set(expected)) == 64
        tasks = [
            asyncio.create_task(
                answer(engine, data, OutputParams(processor=PROCESSORS[kind], nodata=name_of(number)), f"many-{number}")
            )
            for number, (kind, data) in enumerate(zip(kinds, inputs, strict=True))
        ]
        decodes_to_cancel = kinds.count("cancelled in decode")

        async def cancel_in_forward(number):
            await in_forward(engine, f"many-{number}", name_of(number))
            tasks[number].cancel()
            await until(lambda: not in_engine(engine, f"many-{number}"), "the request is aborted")
            let_go(name_of(number))

        async def cancel_in_decode(number):
            nonlocal decodes_to_cancel
            await until(lambda: in_decode(engine, f"many-{number}"), f"request {number} is decoded")
            tasks[number].cancel()
            decodes_to_cancel -= 1
            if not decodes_to_cancel:
                RELEASE.set()

        cancel = {"cancelled in forward": cancel_in_forward, "cancelled in decode": cancel_in_decode}
        await asyncio.gather(*(cancel[kind](number) for number, kind in enumerate(kinds) if kind in cancel))
        ended = await asyncio.gather(*tasks, return_exceptions=True)

        assert Counter(kinds) == dict(zip(KINDS, [11, 11, 11, 11, 10, 10], strict=True))
        for number, (kind, end) in enumerate(zip(kinds, ended, strict=True)):
            check_end(kind, number, end, expected[number])
        await assert_idle(engine)
        await assert_answers(engine)


def check_end(kind, number, end, expected):
    """One caller's own right answer, or own error."""
    where = f"request {number} ({kind}) ended with {end!r}"
    if kind in ("good", "decode sleeps"):
        assert end == expected, where
    elif kind.startswith("cancelled"):
        assert isinstance(end, asyncio.CancelledError), where
    elif kind == "reduce raises":
        assert isinstance(end, ReduceError), where
        assert str(end).endswith(f"ValueError: no reduce for {name_of(number):g}"), where
    else:
        assert isinstance(end, DecodeError), where
        assert isinstance(end.__cause__, LookupError), where
        assert str(end.__cause__) == f"no decode for {name_of(number):g}", where


class TestCancelling:
    """One request is given up at one moment of its life."""

    async def test_in_the_forward(self, engine):
        """A request that is cancelled while the engine works on it leaves nothing; its late output is ignored."""
        params = OutputParams(processor="ReduceHolds", nodata=-1001.0)
        task = asyncio.create_task(answer(engine, scene(1), params, "forward"))
        await in_forward(engine, "forward", -1001.0)

        await cancelled_task(task)
        await assert_idle(engine)
        let_go(-1001.0)
        await assert_answers(engine)

    async def test_in_the_decode(self, engine):
        """A request that is cancelled while its decoder runs leaves nothing; the late result is thrown away."""
        task = asyncio.create_task(answer(engine, scene(2), OutputParams(processor="DecodeWaits"), "decode"))
        await until(lambda: engine.output_processor.pool._running, "the decoder runs")
        assert in_decode(engine, "decode")

        await cancelled_task(task)
        assert leftovers(engine.output_processor) == {}
        RELEASE.set()
        await assert_answers(engine)

    async def test_before_the_engine(self, engine):
        """A request that is cancelled while it waits for a credit leaves its place in the line."""
        credits = engine.mmout.credits
        params = OutputParams(processor="DecodeWaits")
        inside = [asyncio.create_task(answer(engine, scene(i), params, f"in-{i}")) for i in range(credits.count)]
        await until(lambda: credits.used_count == credits.count, "all credits are taken")
        outside = [asyncio.create_task(answer(engine, scene(i), params, f"out-{i}")) for i in (100, 101)]
        await until(lambda: len(credits._waiting) == 2, "two wait for a credit")

        await cancelled_task(outside[0])
        assert len(credits._waiting) == 1
        RELEASE.set()
        assert await asyncio.gather(*inside, outside[1]) == [echo(scene(i)) for i in (*range(credits.count), 101)]
        await assert_idle(engine)


class TestClosing:
    """The generator that ``generate`` returns is closed."""

    async def test_before_it_is_started(self, engine):
        """A generator that nobody has asked for anything has added nothing."""
        generator = engine.generate(scene(3))
        await generator.aclose()
        await assert_idle(engine)

    async def test_after_the_result(self, engine):
        """Leaving the loop at the result leaves nothing."""
        generator = engine.generate(scene(4), OutputParams(processor="Echo"))
        async for result in generator:
            assert result.outputs == echo(scene(4))
            break
        await generator.aclose()
        await assert_idle(engine)

    @pytest.mark.parametrize("processor", ["ReduceHolds", "DecodeWaits"])
    async def test_with_its_request_on_the_way(self, engine, processor):
        """Giving up the wait and closing aborts the request, in the forward and in the decode."""
        name = -2001.0 if processor == "ReduceHolds" else -2002.0
        generator = engine.generate(scene(5), OutputParams(processor=processor, nodata=name), f"close-{processor}")
        wait = asyncio.create_task(anext(generator))
        if processor == "ReduceHolds":
            await in_forward(engine, f"close-{processor}", name)
        else:
            await until(lambda: in_decode(engine, f"close-{processor}"), "the request is decoded")

        await cancelled_task(wait)
        await generator.aclose()
        assert leftovers(engine.output_processor) == {}
        let_go(name)
        RELEASE.set()
        await assert_answers(engine)

    @pytest.mark.parametrize("processor", ["ReduceHolds", "DecodeWaits"])
    async def test_by_a_time_limit(self, engine, processor):
        """A caller's own time limit aborts the request."""
        name = -2003.0 if processor == "ReduceHolds" else -2004.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await answer(engine, scene(6), OutputParams(processor=processor, nodata=name))

        assert leftovers(engine.output_processor) == {}
        let_go(name)
        RELEASE.set()
        await assert_answers(engine)


class TestAbort:
    """``AsyncLLM.abort`` by the request id that the caller gave."""

    async def test_in_the_engine(self, engine):
        """Generate ends with an AbortedError while the step still runs."""
        params = OutputParams(processor="ReduceHolds", nodata=-3001.0)
        task = asyncio.create_task(answer(engine, scene(7), params, "abort-forward"))
        await in_forward(engine, "abort-forward", -3001.0)

        await engine.abort("abort-forward")
        with pytest.raises(AbortedError, match="aborted"):
            await task
        await assert_idle(engine)
        let_go(-3001.0)
        await assert_answers(engine)

    async def test_in_the_decode(self, engine):
        """Generate ends with an AbortedError while the decoder still runs."""
        task = asyncio.create_task(answer(engine, scene(8), OutputParams(processor="DecodeWaits"), "abort-decode"))
        await until(lambda: engine.output_processor.pool._running, "the decoder runs")
        assert in_decode(engine, "abort-decode")

        await engine.abort("abort-decode")
        with pytest.raises(AbortedError, match="aborted"):
            await task
        assert leftovers(engine.output_processor) == {}
        RELEASE.set()
        await assert_answers(engine)

    async def test_of_one_takes_no_other(self, engine):
        """Of two in the same stage only the named one ends; an id that nobody has is ignored."""
        params = OutputParams(processor="DecodeWaits")
        tasks = [asyncio.create_task(answer(engine, scene(i), params, f"abort-{i}")) for i in (9, 10)]
        await until(lambda: all(in_decode(engine, f"abort-{i}") for i in (9, 10)), "both are decoded")

        await engine.abort(["abort-9", "nobody"])
        RELEASE.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(ended[0], AbortedError)
        assert ended[1] == echo(scene(10))
        await assert_idle(engine)


def raw_prompt(data):
    """An input as vLLM's own interface takes it."""
    return {"prompt_token_ids": [1], "multi_modal_data": {"image": data}}


async def encoded(engine, data, request_id, extra_kwargs=None):
    """The last output of vLLM's own ``encode``."""
    from vllm.pooling_params import PoolingParams

    params = PoolingParams(task="plugin", extra_kwargs=extra_kwargs)
    outputs = [output async for output in engine.encode(raw_prompt(data), params, request_id)]
    return outputs[-1]


class TestMarks:
    """Marked requests are decoded, unmarked ones are not; a mark of a client is input."""

    async def test_marked_and_unmarked_at_once(self, engine):
        """Encode gives the raw float logits, generate the decoded object, whatever runs beside."""
        marked = [answer(engine, scene(i), OutputParams(processor="Echo")) for i in range(12)]
        failing = [answer(engine, scene(i), OutputParams(processor="ReduceRaises")) for i in range(4)]
        unmarked = [encoded(engine, scene(i), f"raw-{i}") for i in range(12)]
        ended = await asyncio.gather(*marked, *unmarked, *failing, return_exceptions=True)

        assert ended[:12] == [echo(scene(i)) for i in range(12)]
        for i, output in enumerate(ended[12:24]):
            data = output.outputs.data
            assert str(data.dtype) == "torch.float32"
            np.testing.assert_array_equal(data.numpy(), logits(scene(i)))
        assert all(isinstance(end, ReduceError) for end in ended[24:])
        await assert_idle(engine)

    async def test_a_right_mark_through_encode_is_decoded(self, engine):
        """A client that marks its request itself gets the decoded object."""
        output = await encoded(engine, scene(11), "marked", {"mmout": {"processor": "Echo"}})

        assert output.outputs == echo(scene(11))
        await assert_idle(engine)

    @pytest.mark.parametrize(
        ("mark", "said"),
        [
            ({"colour": "blue"}, "unknown option 'colour'.*known: .*processor"),
            ({"procesor": "Echo"}, "did you mean 'processor'"),
            ({1: "Echo"}, "unknown option 1"),
            ({"path": "mine.tif"}, "unknown option 'path'"),
            ({"processor": 7}, "processor"),
            ({"bands": 3}, "bands"),
            ({"nodata": "none"}, "nodata"),
            ({"bands": [0]}, "bands must count from 1, got 0"),
            ("Echo", "table of options, got str"),
            (None, "table of options, got NoneType"),
            ({"processor": "nobody"}, "nobody.*known|known.*nobody"),
            ({"processor": "os:system"}, "os:system"),
            ({"processor": "processors_for_tests:Echo"}, "processors_for_tests:Echo"),
            ({"processor": []}, "empty list"),
            ({"output": "wrong"}, "no output 'wrong'"),
        ],
    )
    async def test_a_wrong_mark_is_refused(self, engine, mark, said):
        """It is an error of ours and of vLLM's for a client's mistake (a 400), and nothing enters the engine."""
        from vllm.exceptions import VLLMValidationError

        with pytest.raises(OptionError, match=said) as refusal:
            await encoded(engine, scene(12), "wrong", {"mmout": mark})

        assert isinstance(refusal.value, VLLMValidationError)
        await assert_idle(engine)

    async def test_wrong_inputs_and_params_are_refused_before_the_engine(self, engine):
        """Generate refuses with an error that is the client's too."""
        from vllm.exceptions import VLLMValidationError

        for data, params, kind in [
            (np.zeros((5, 8, 8), np.uint16), None, InputError),
            (scene(1), OutputParams(processor="nobody"), OptionError),
            ("no such file.tif", None, InputError),
        ]:
            with pytest.raises(kind) as refusal:
                await answer(engine, data, params)
            assert isinstance(refusal.value, VLLMValidationError)
        await assert_idle(engine)


async def test_concurrent_requests_give_what_they_give_one_by_one(engine):
    """Forty requests at once, of mixed sizes, processors and outputs, give the same bytes as one after the other."""
    picks = ["segmentation", "tensor", ("Echo", "segmentation"), "Echo"]
    requests = [
        (scene(i, 8 + i % 7, 8 + i % 4), OutputParams(processor=picks[i % 4], bands=[1, 1 + i % 6, 3, 4, 5, 6]))
        for i in range(40)
    ]
    alone = [flat(await answer(engine, *request)) for request in requests]

    together = await asyncio.gather(*(answer(engine, *request) for request in requests))
    assert [flat(output) for output in together] == alone
    await assert_idle(engine)


def flat(output):
    """Plain data that compares by content."""
    if isinstance(output, dict):
        return {name: flat(value) for name, value in output.items()}
    array = getattr(output, "array", None)
    return output if array is None else (array.dtype.str, array.shape, array.tobytes())


async def test_shutdown_fails_pending_decodes(engine):
    """Everyone who waits for a decode gets an AbortedError, nobody hangs, and no decode thread is left.

    The last test of this module: it ends the engine.
    """
    params = OutputParams(processor="DecodeWaits")
    tasks = [asyncio.create_task(answer(engine, scene(i), params, f"pending-{i}")) for i in range(12)]
    await until(lambda: len(engine.output_processor.pending) == 12, "all are decoded")
    assert decode_threads()

    engine.shutdown()
    async with asyncio.timeout(DEADLINE):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ended] == [AbortedError] * 12
    assert all(isinstance(end, MMOutError) and "shut down" in str(end) for end in ended)
    await assert_idle_credits(engine)
    RELEASE.set()
    await until(lambda: not decode_threads(), "the decode threads have ended")


async def assert_idle_credits(engine):
    """All credits are back and no decode is left."""
    assert leftovers(engine.output_processor) == {}
    assert (engine.mmout.credits.used_count, engine.mmout.credits.used_bytes) == (0, 0)


def decode_threads():
    """The decode threads of this module's engine that can still run."""
    return [thread for thread in {*threading.enumerate()} - THREADS_OF_OTHERS if thread.name == "mmout-decode"]
