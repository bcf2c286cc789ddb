"""A bound engine's core sleeps while its workers compute, and they between steps, which take as long as many tokens."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import zmq
from processes import descendants
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, SpinCondition
from water_oracle import scene

from vllm_mmout.engine.worker.resting import rest_between_steps, rest_while_workers_compute

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:Unclosed socket:ResourceWarning"),  # the queue of vLLM 0.31 leaves its own open
]
WAITS_S = 0.6
MANY = 200


@contextmanager
def connected():
    """Both ends of the queue through which vLLM's core hears of a worker."""
    writer = MessageQueue(1, 1)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    ends = [threading.Thread(target=end.wait_until_ready) for end in (writer, reader)]
    for end in ends:
        end.start()
    for end in ends:
        end.join()
    yield writer, reader
    for end in (reader, writer):
        end.shutdown()


@pytest.fixture
def queues():
    with connected() as ends:
        yield ends


def test_it_sleeps_until_a_worker_answers(queues, monkeypatch):
    """An answer that comes late costs next to no time of a processor, and comes whole, and so does the next one."""
    writer, reader = queues
    writer.enqueue("first")
    assert reader.dequeue(timeout=60) == "first"
    with monkeypatch.context() as patched:  # a reader that sleeps calls its poller
        patched.setattr(reader._spin_condition, "poller", SimpleNamespace(poll=_sleeps))
        reader._spin_condition.record_read()
        reader._spin_condition.wait(timeout_ms=1)

    rest_while_workers_compute(SimpleNamespace(response_mqs=[reader]))

    for _ in range(2):
        assert _waiting_for(reader, writer) < WAITS_S / 30


def test_an_executor_without_queues_is_left_alone():
    """On a GPU a single worker runs in the core's own process."""
    rest_while_workers_compute(SimpleNamespace())


def test_queues_made_later_sleep_too(monkeypatch):
    """In a worker's process all queues wait asleep that are made after its model was loaded."""
    monkeypatch.setattr(SpinCondition, "__init__", SpinCondition.__init__)
    rest_between_steps()
    with connected() as (writer, reader):
        writer.enqueue("first")
        assert reader.dequeue(timeout=60) == "first"
        assert _waiting_for(reader, writer) < WAITS_S / 30


def test_the_engines_processes_sleep_when_nothing_is_to_do(mp_llm):
    """Half a second after a request they have taken next to nothing of a processor."""
    mp_llm.generate(scene(1), use_tqdm=False)
    processes = descendants()
    assert any("VLLM::Worker" in child.name() for child in processes)
    before = [child.cpu_times() for child in processes]
    time.sleep(WAITS_S)
    spent = [sum(child.cpu_times()[:2]) - sum(times[:2]) for child, times in zip(processes, before, strict=True)]
    assert max(spent) < WAITS_S / 6


def _sleeps(timeout):
    """Stand for the poller of a queue that should not sleep yet."""
    pytest.fail("vLLM's own queue does not spin any more: this is superfluous")


def _waiting_for(reader, writer) -> float:
    """Seconds of a processor that this thread spends until an answer is there."""
    answer = threading.Timer(WAITS_S, writer.enqueue, ["late"])
    started = time.thread_time()
    answer.start()
    assert reader.dequeue(timeout=60) == "late"
    spent = time.thread_time() - started
    answer.join()
    return spent


def test_no_call_to_a_worker_is_lost(queues):
    """A sleeper that misses one looks again after five seconds only."""
    writer, _ = queues
    with _sleeper(writer) as sleeper:
        assert _heard(writer, sleeper) < MANY, "vLLM itself drops no calls any more: this is superfluous"
        rest_while_workers_compute(SimpleNamespace(rpc_broadcast_mq=writer))
        assert _heard(writer, sleeper) == MANY


def test_no_call_of_a_worker_is_lost(monkeypatch):
    monkeypatch.setattr(SpinCondition, "__init__", SpinCondition.__init__)
    rest_between_steps()
    with connected() as (writer, _), _sleeper(writer) as sleeper:
        assert _heard(writer, sleeper) == MANY


def test_a_message_whose_call_is_lost_is_found(queues, monkeypatch):
    """A sleeper looks for messages long before the five seconds after which vLLM's own does."""
    writer, reader = queues
    rest_while_workers_compute(SimpleNamespace(response_mqs=[reader]))
    writer.enqueue("first")
    assert reader.dequeue(timeout=60) == "first"
    monkeypatch.setattr(writer._spin_condition, "notify", lambda: None)
    late = threading.Timer(0.05, writer.enqueue, ["late"])
    late.start()
    started = time.monotonic()
    assert reader.dequeue(timeout=60) == "late"
    assert time.monotonic() - started < 4
    late.join()


@contextmanager
def _sleeper(writer):
    """Another one who is called when there is a message, which keeps all calls; vLLM's keeps the last one."""
    with zmq.Context() as context, context.socket(zmq.SUB) as sleeper:
        sleeper.subscribe(b"")
        sleeper.connect(writer._spin_condition.local_notify_socket.getsockopt(zmq.LAST_ENDPOINT))
        while not sleeper.poll(10):  # until it is connected
            writer._spin_condition.notify()
        yield sleeper


def _heard(writer, sleeper) -> int:
    """How many of many calls in a row are heard."""
    while sleeper.poll(200):
        sleeper.recv()
    for _ in range(MANY):
        writer._spin_condition.notify()
    heard = 0
    while heard < MANY and sleeper.poll(1000):
        sleeper.recv()
        heard += 1
    return heard
