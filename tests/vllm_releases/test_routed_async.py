"""A bound ``AsyncLLM`` of the release: vLLM's own handler task fills the queues, and outlives whatever fails."""

from __future__ import annotations

import asyncio
import threading

import hand_fed
import pytest
import torch
from hand_fed import Waits, add_async, answered, async_llm, ended, marked, packed, unmarked
from vllm.outputs import PoolingRequestOutput

from vllm_mmout.engine.hooks.compat import may_be_sent_again
from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.errors import AbortedError, DecodeError, RequestError

pytestmark = pytest.mark.engine


@pytest.fixture
async def engine():
    """A bound engine whose handler task is alive, and idle, at the end."""
    engine = async_llm()
    assert isinstance(engine, BoundAsyncLLM)
    yield engine
    assert not engine.output_handler.done()
    assert engine.output_processor.get_num_unfinished_requests() == 0
    engine.shutdown()
    await asyncio.sleep(0)
    assert engine.output_handler.done()


async def got(queue):
    return await asyncio.wait_for(queue.get(), 30)


async def until(condition):
    while not condition():  # noqa: ASYNC110 - the state of an engine has no event
        await asyncio.sleep(0.001)


async def test_each_queue_gets_its_own(engine):
    """Marked requests get decoded objects, the unmarked one its tensor, failed ones their error."""
    marks = {"a": "answer", "b": "fails", "c": "answer", "d": "answer"}
    queues = {name: add_async(engine, name, marked(processor)) for name, processor in marks.items()}
    raw, lost = add_async(engine, "e", unmarked()), add_async(engine, "f", unmarked())
    engine.engine_core.feed(
        packed("a", [1]),
        packed("b", [2], "fails"),
        ended("c", "ABORT"),
        answered("e", torch.ones(3)),
        ended("f", "ERROR"),
    )
    engine.engine_core.feed(packed("d", [4]))
    results = {name: await got(queue) for name, queue in queues.items()}
    assert {type(result) for result in results.values()} == {MultimodalRequestOutput}
    assert {name: type(result.error) for name, result in results.items()} == {
        "a": type(None),
        "b": DecodeError,
        "c": AbortedError,
        "d": type(None),
    }
    assert (results["a"].outputs, results["d"].outputs) == ([1], [4])
    tensor = await got(raw)
    assert type(tensor) is PoolingRequestOutput
    assert tensor.outputs.data.tolist() == [1, 1, 1]
    assert (await got(lost)).outputs.data.numel() == 0


async def test_results_are_put_on_the_loops_thread(engine):
    """A decoded result enters its queue on the loop's thread: an asyncio.Event set elsewhere wakes nobody."""
    queue, threads = add_async(engine, "a", marked()), []
    put = queue.put

    def noting(output):
        threads.append(threading.current_thread())
        put(output)

    queue.put = noting
    engine.engine_core.feed(packed("a", [1]))
    await asyncio.wait_for(until(lambda: threads), 30)
    assert threads == [threading.current_thread()]
    assert (await got(queue)).outputs == [1]


@pytest.mark.parametrize("internal", [True, False], ids=["internal", "external"])
async def test_an_abort_ends_a_pending_decode(engine, internal):
    """An abort while a decode is pending gives the waiting queue an AbortedError; the next request is served."""
    Waits.leave.clear()
    queue = add_async(engine, "a", marked("waits"))
    engine.engine_core.feed(packed("a", [1], "waits"))
    await asyncio.wait_for(until(lambda: engine.output_processor.pending), 30)
    await engine.abort("a-internal" if internal else "a", internal=internal)
    assert type((await got(queue)).error) is AbortedError
    Waits.leave.set()
    after = add_async(engine, "b", marked())
    engine.engine_core.feed(packed("b", [2]))
    assert (await got(after)).outputs == [2]


async def test_an_abort_ends_a_request_whose_report_is_decoded(engine):
    """The output of the abort is the last one of its request, since the result behind the report is dropped."""
    Waits.leave.clear()
    queue, router = add_async(engine, "a", marked("waits")), engine.output_processor
    state = router.request_states["a-internal"]
    report = MultimodalRequestOutput("a", None, [], 0, finished=False)
    router.start_decode(state, state.mmout, report, packed("a", [1], "waits").pooling_output)
    engine.engine_core.feed(packed("a", [2], "waits"))
    await asyncio.wait_for(until(lambda: state.mmout.due), 30)
    await engine.abort("a", internal=False)
    output = await got(queue)
    assert (type(output.error), output.finished) == (AbortedError, True)
    Waits.leave.set()


async def test_an_abort_of_a_running_request(engine):
    """An abort of a request that the core still has is told to the core, and its queue gets an AbortedError."""
    queue = add_async(engine, "a", marked())
    await engine.abort("a", internal=False)
    assert type((await got(queue)).error) is AbortedError
    assert engine.engine_core.aborted == ["a-internal"]


async def test_a_shutdown_fails_what_is_pending():
    """A shutdown ends pending decodes with an AbortedError."""
    engine = async_llm()
    Waits.leave.clear()
    queue = add_async(engine, "a", marked("waits"))
    engine.engine_core.feed(packed("a", [1], "waits"))
    await asyncio.wait_for(until(lambda: engine.output_processor.pending), 30)
    engine.shutdown()
    assert type((await got(queue)).error) is AbortedError
    Waits.leave.set()


async def test_a_stream_interval_changes_nothing():
    """With a stream interval above 1 both kinds of request get their result."""
    engine = async_llm(stream_interval=4)
    queues = [add_async(engine, "a", marked()), add_async(engine, "b", unmarked())]
    engine.engine_core.feed(packed("a", [1]), answered("b", torch.ones(2)))
    ours, theirs = [await got(queue) for queue in queues]
    assert ours.outputs == [1]
    assert theirs.outputs.data.tolist() == [1, 1]
    engine.shutdown()


@pytest.mark.skipif("error" not in hand_fed.EngineCoreOutput.__struct_fields__, reason="this vLLM sends no such errors")
@pytest.mark.parametrize("paused", [False, True])
async def test_an_error_that_the_core_sends(engine, paused):
    """It is raised where the request is waited for; of a paused engine it says that a tile may be sent again."""
    from vllm import outputs

    queues = [add_async(engine, "a", marked()), add_async(engine, "b", unmarked())]
    error = outputs.RequestError("paused", "no requests today", retryable=paused)
    engine.engine_core.feed(*(ended(name, "ERROR", error=error) for name in "ab"))
    for queue in queues:
        with pytest.raises(Exception, match="no requests today") as raised:
            await got(queue)
        assert may_be_sent_again(raised.value) is paused


async def test_a_cache_miss_that_the_core_reports(engine):
    """A request that the core ends for want of a cached input fails alone, in the words of vLLM where it has some."""
    queue = add_async(engine, "a", marked())
    engine.engine_core.feed(ended("a", "ERROR", mm_cache_miss_hashes=["hash"]))
    error = (await got(queue)).error
    assert type(error) is RequestError
    assert "the engine ended the request" in str(error)
