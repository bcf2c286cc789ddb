"""What ends ``LLM.generate`` from outside: it leaves nothing pending, and the next call gives only its own results."""

from __future__ import annotations

import asyncio
import io
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from interrupting import interrupted_after
from processors_for_tests import RELEASE, hold
from tqdm.auto import tqdm
from vllm import LLM
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.engine.llm_engine import LLMEngine
from water_oracle import echo, leftovers, scene

from vllm_mmout import OutputParams
from vllm_mmout.errors import DecodeError

pytestmark = pytest.mark.engine

DEADLINE = 60
"""Seconds that no step of these tests takes, on whatever machine."""

ECHO = OutputParams(processor="Echo")


@pytest.fixture(params=["llm", pytest.param("mp_llm", marks=pytest.mark.slow)])
def engine(request):
    """An ``LLM``, in this process and in processes of its own."""
    return request.getfixturevalue(request.param)


@pytest.fixture(autouse=True)
def decoders_wait():
    """Decoders that wait do so until a test lets them go; at its end all go."""
    RELEASE.clear()
    yield
    RELEASE.set()


def assert_clean(engine, seeds=(901, 902, 903)):
    """Nothing is pending, and the next call gives its own results only."""
    assert leftovers(engine.llm_engine.output_processor) == {}
    assert not engine.llm_engine.has_unfinished_requests()
    results = engine.generate([scene(seed) for seed in seeds], ECHO, use_tqdm=False)
    assert [result.outputs for result in results] == [echo(scene(seed)) for seed in seeds]
    assert leftovers(engine.llm_engine.output_processor) == {}


class UnpluggedError(Exception):
    """An exception of the caller's own."""


def bar(error, place, method="update"):
    """A progress bar class that raises in the call of one method that its place says."""
    calls = {"update": 0, "close": 0}

    class Bar(tqdm):
        def count(self, name):
            calls[name] += 1
            if name == method and calls[name] == place:
                raise error

        def update(self, n=1):
            self.count("update")
            return super().update(n)

        def close(self):
            super().close()
            self.count("close")

    return Bar


@pytest.mark.parametrize("error", [KeyboardInterrupt, UnpluggedError, GeneratorExit])
@pytest.mark.parametrize("place", [1, 2, 7, 24])
def test_an_exception_in_the_progress_bar(engine, error, place):
    """It reaches the caller as it is, whether at the first result, in the middle or at the last."""
    with pytest.raises(error):
        engine.generate([scene(number) for number in range(24)], ECHO, use_tqdm=bar(error, place))
    assert_clean(engine)


def test_an_exception_at_an_input_that_is_refused(engine):
    """The bar is told of refused inputs as well; what was added before is aborted."""
    inputs = [scene(1), scene(2), scene(3)[:5], scene(4)]
    with pytest.raises(UnpluggedError):
        engine.generate(inputs, ECHO, use_tqdm=bar(UnpluggedError, 1))
    assert_clean(engine)


@pytest.mark.parametrize("method", ["close", "make"])
def test_an_exception_of_the_bar_before_and_after(engine, method):
    """A bar that cannot be made, or not be closed, leaves nothing either."""

    def cannot_be_made(**kwargs):
        raise UnpluggedError

    with pytest.raises(UnpluggedError):
        engine.generate(
            scene(1), ECHO, use_tqdm=cannot_be_made if method == "make" else bar(UnpluggedError, 1, "close")
        )
    assert_clean(engine)


def test_an_exception_of_an_input_that_is_read_by_the_caller(engine):
    """A file object of the caller's that raises what it likes ends the call, and leaves nothing."""

    class File:
        def read(self, *args):
            raise UnpluggedError

        seek = tell = read

    with pytest.raises(UnpluggedError):
        engine.generate([scene(1), scene(2), File()], ECHO, use_tqdm=False)
    assert_clean(engine)


@contextmanager
def interrupted_when(condition, then=lambda: None):
    """Send this process a real SIGINT once a condition holds, then do something; expect the KeyboardInterrupt."""
    sent = threading.Event()

    def watch():
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            if condition():
                sent.set()
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                then()
                return
            time.sleep(0.002)
        RELEASE.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        watcher.join()
    assert sent.is_set()


@pytest.fixture
def inside(monkeypatch):
    """Watches a method of an object: ``inside(owner, name)`` gives a function that says whether a call of it is on."""

    def watch(owner, name):
        original, calls = getattr(owner, name), []

        def watched(*args, **kwargs):
            calls.append(name)
            try:
                return original(*args, **kwargs)
            finally:
                calls.pop()

        monkeypatch.setattr(owner, name, watched)
        return lambda: bool(calls)

    return watch


@pytest.mark.parametrize("number", [1, 20])
def test_a_signal_while_step_waits_for_the_engine(engine, number, request, inside):
    """Ctrl-C in the middle of a forward; the rest of the list has not been added, or waits behind it."""
    name = -5000.0 - len(request.node.name) - number
    params = OutputParams(processor="ReduceHolds", nodata=name)
    started, go = hold(name)
    started.unlink(missing_ok=True)
    go.unlink(missing_ok=True)
    in_process = isinstance(engine.llm_engine.engine_core, InprocClient)
    release = go.touch if in_process else lambda: None  # an engine in this process ends its step first
    waits = inside(engine.llm_engine.engine_core, "get_output")
    with interrupted_when(lambda: started.exists() and waits(), release):
        engine.generate([scene(seed) for seed in range(number)], [params, *[ECHO] * (number - 1)], use_tqdm=False)
    go.touch()
    assert_clean(engine)


@pytest.mark.parametrize("number", [1, 3, 20])
def test_a_signal_while_step_waits_for_a_decoder(engine, number, inside):
    """Ctrl-C while all that is left is being decoded; late results are thrown away."""
    with interrupted_when(inside(engine.llm_engine.output_processor, "wait_ready")):
        engine.generate([scene(seed) for seed in range(number)], OutputParams(processor="DecodeWaits"), use_tqdm=False)
    RELEASE.set()
    assert_clean(engine)


# Python swallows an exception in a garbage collector's callback, a Ctrl-C too: that one did not come.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_signals_at_any_moment(engine):
    """Ctrl-C at thirty moments of a call, wherever they fall."""
    inputs = [scene(seed) for seed in range(24)]
    picks = ["Echo", "segmentation", ("tensor", "Echo"), "ReduceRaises", "DecodeRaises", "tensor"]
    params = [OutputParams(processor=picks[number % len(picks)]) for number in range(24)]
    started = time.monotonic()
    engine.generate(inputs, params, use_tqdm=False)
    moments, whole, hits = np.random.default_rng(0), time.monotonic() - started, 0
    deadline = time.monotonic() + DEADLINE
    while hits < 30:
        assert time.monotonic() < deadline, f"{hits} interrupts came in time"
        started = time.monotonic()
        if interrupted_after(moments.uniform(0, whole), lambda: engine.generate(inputs, params, use_tqdm=False)):
            hits += 1
        else:
            whole = min(whole, time.monotonic() - started)
        assert_clean(engine)


def test_a_signal_while_an_input_is_read(engine):
    """Ctrl-C while the caller reads an input ends the call before the next input is read."""
    read = []

    class File(io.BytesIO):
        def read(self, *args):
            read.append(self)
            signal.raise_signal(signal.SIGINT)
            raise OSError("gone")

        readinto = read1 = read

    files = [File(), File()]
    with pytest.raises(KeyboardInterrupt):
        engine.generate([scene(1), *files], ECHO, use_tqdm=False)
    assert {*read} == {files[0]}
    assert_clean(engine)


def test_a_signal_in_encode(engine, monkeypatch):
    """Ctrl-C while vLLM computes raw tensors meets no half step."""
    done = []

    def encode(*_):
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")

    monkeypatch.setattr(LLM, "encode", encode)
    with pytest.raises(KeyboardInterrupt):
        engine.encode("prompt")
    assert done == ["all of it"]


@pytest.mark.parametrize("method", ["add_request", "abort_request", "step"])
def test_a_signal_in_a_method_of_the_engine(engine, monkeypatch, method):
    """Ctrl-C comes when vLLM's method has ended, for callers that drive the engine themselves."""
    done = []

    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")
        return []

    monkeypatch.setattr(LLMEngine, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(engine.llm_engine, method)()
    assert done == ["all of it"]


def test_a_request_that_vllm_adds_in_part_and_refuses_fails_alone(engine, monkeypatch):
    """Nothing of it stays in the engine, and the next request is answered."""
    core, calls = engine.llm_engine.engine_core, []
    add = core.add_request

    def refuse_first(request):
        calls.append(request)
        if len(calls) == 1:
            raise ValueError("refused late")
        add(request)

    monkeypatch.setattr(core, "add_request", refuse_first)
    first, second = engine.generate([scene(1), scene(2)], ECHO, use_tqdm=False)
    assert str(first.error) == "refused late"
    assert second.outputs == echo(scene(2))
    assert_clean(engine)


def test_generate_inside_a_running_event_loop(engine):
    """A notebook's cell runs inside a loop: generate works there as elsewhere, and an interrupt too."""

    async def cell():
        with pytest.raises(UnpluggedError):
            engine.generate([scene(1), scene(2)], ECHO, use_tqdm=bar(UnpluggedError, 1))
        assert_clean(engine)
        with pytest.raises(DecodeError):
            engine.generate(scene(1), OutputParams(processor="DecodeRaises"), use_tqdm=False)
        return engine.generate([scene(5), scene(6)], ECHO, use_tqdm=False)

    assert [result.outputs for result in asyncio.run(cell())] == [echo(scene(5)), echo(scene(6))]
    assert_clean(engine)
