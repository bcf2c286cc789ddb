"""A Ctrl-C during a call of an engine is delayed, and delivered where the call checks for it."""

from __future__ import annotations

import signal
import threading

import pytest

pytest.importorskip("vllm", reason="vLLM's engine is what it wakes")

from vllm_mmout.engine.request.interrupts import Interrupts
from vllm_mmout.errors import raise_interrupt

pytestmark = pytest.mark.engine
WAIT_S = 60.0
"""Limit of a wait that ends at once."""


def silent():
    """Wake nobody."""


def ctrl_c():
    """Send this process a SIGINT, whose handler has run when this returns."""
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def handler():
    """The handler of Ctrl-C is the same after a test as before."""
    before = signal.getsignal(signal.SIGINT)
    yield before
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_comes_where_the_call_looks():
    """The code that a Ctrl-C meets goes on until `deliver`."""
    interrupts, done = Interrupts(), []
    with interrupts.delayed(silent):
        interrupts.deliver()
        ctrl_c()
        done.append("all of it")
        with pytest.raises(KeyboardInterrupt):
            interrupts.deliver()
        interrupts.deliver()
    assert done == ["all of it"]


@pytest.mark.parametrize("raised", [None, LookupError])
def test_an_interrupt_that_nobody_delivered_comes_at_the_end(raised):
    """A Ctrl-C is not lost, whether the call ends well or by another error."""
    interrupts, done = Interrupts(), []

    def call():
        with interrupts.delayed(silent):
            ctrl_c()
            done.append("all of it")
            if raised is not None:
                raise raised

    with pytest.raises(KeyboardInterrupt) as info:
        call()
    assert done == ["all of it"]
    assert isinstance(info.value.__context__, raised or type(None))


def test_a_second_interrupt_comes_at_once():
    """A user who insists is not made to wait; a third Ctrl-C is delayed again, so that the call can clean up."""
    interrupts, done = Interrupts(), []
    with interrupts.delayed(silent):
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
        ctrl_c()
        done.append("cleaned up")
        with pytest.raises(KeyboardInterrupt):
            interrupts.deliver()
    assert done == ["cleaned up"]


def test_an_interrupt_wakes_a_wait_in_another_thread():
    """The waker may take locks that the interrupted code holds, so the handler does not call it."""
    lock, woken = threading.Lock(), threading.Event()

    def wake():
        with lock:
            woken.set()

    interrupts = Interrupts()
    with interrupts.delayed(wake):
        with lock:
            ctrl_c()
        assert woken.wait(WAIT_S)
        with pytest.raises(KeyboardInterrupt):
            interrupts.deliver()


def test_an_interrupt_without_a_thread_to_spare_comes_at_once(monkeypatch):
    """If the system starts no thread, nothing could end a wait."""

    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refused)
    with Interrupts().delayed(silent), pytest.raises(KeyboardInterrupt):
        ctrl_c()


def test_a_handler_that_does_not_raise_is_called_once(handler):
    """The user's own handler hears of each Ctrl-C, and the call goes on."""
    heard, interrupts = [], Interrupts()
    signal.signal(signal.SIGINT, lambda *_: heard.append("ctrl-c"))
    try:
        with interrupts.delayed(silent):
            for _ in range(2):
                ctrl_c()
                interrupts.deliver()
                interrupts.deliver()
        assert heard == ["ctrl-c"] * 2
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_handler_gets_a_frame(handler):
    """The user's handler may look at the frame, wherever its Ctrl-C is delivered."""
    frames, interrupts = [], Interrupts()
    signal.signal(signal.SIGINT, lambda _, frame: frames.append(frame.f_code.co_name))
    try:
        with interrupts.delayed(silent):
            ctrl_c()
            interrupts.deliver()
            ctrl_c()
            ctrl_c()
            ctrl_c()
        assert frames == ["deliver", "ctrl_c", "delayed"]
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_call_within_a_call_leaves_the_handler(handler):
    """The outer call delivers what both note."""
    interrupts = Interrupts()
    with interrupts.delayed(silent):
        ours = signal.getsignal(signal.SIGINT)
        assert ours is not handler
        with interrupts.delayed(silent):
            assert signal.getsignal(signal.SIGINT) == ours
            ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interrupts.deliver()


@pytest.mark.parametrize("count", [1, 2])
def test_interrupts_as_the_call_ends_leave_no_handler(monkeypatch, handler, count):
    """A Ctrl-C, or two, at the moment when the handler is restored come after it is."""
    change = signal.signal

    def interrupted(signum, new):
        assert new is handler
        for _ in range(count):
            ctrl_c()
        return change(signum, new)

    def call():
        with Interrupts().delayed(silent):
            monkeypatch.setattr(signal, "signal", interrupted)

    with pytest.raises(KeyboardInterrupt):
        call()


def test_a_users_interrupt_is_told_from_one_that_an_authors_function_raises():
    """A Ctrl-C that is delivered in an author's function goes on to the user; ``raise KeyboardInterrupt`` does not."""

    def called(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - as around each author's function
            raise_interrupt(error)
            return error
        return None

    def interrupts():
        raise KeyboardInterrupt

    with Interrupts().delayed(silent):
        assert isinstance(called(interrupts), KeyboardInterrupt)
        assert called(ctrl_c) is None
        with pytest.raises(KeyboardInterrupt):
            called(ctrl_c)
    with pytest.raises(KeyboardInterrupt):  # nobody notes it: it may be the user's
        called(interrupts)


def test_other_threads_are_left_alone(handler):
    """Python runs signal handlers in the main thread only."""
    seen = []

    def work():
        with Interrupts().delayed(silent):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [handler]
