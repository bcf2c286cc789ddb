"""Ctrl-C while an engine in this process is in the middle of a step."""

from __future__ import annotations

import signal
import threading

import pytest

pytest.importorskip("vllm", reason="vLLM's engine is what it waits for")

from vllm_mmout.engine.request.llm_engine import Interrupts
from vllm_mmout.errors import raise_interrupt

pytestmark = pytest.mark.engine


def test_one_interrupt_waits_for_the_end_of_the_block():
    """What the block does is done before the KeyboardInterrupt comes."""
    done = []

    def block():
        with Interrupts().held_back():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["all of it"]


def test_a_second_interrupt_goes_through():
    """A user who insists is not made to wait."""
    done = []

    def block():
        with Interrupts().held_back():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == []


@pytest.mark.parametrize("error", [None, LookupError])
def test_the_handler_is_put_back(error):
    """After the block, however it ends, the handler is that from before."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with Interrupts().held_back():
            assert signal.getsignal(signal.SIGINT) is not before
            if error is not None:
                raise error
    except LookupError:
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_a_users_interrupt_is_told_from_one_that_an_authors_function_raises():
    """Inside a watch, a Ctrl-C in an author's function goes on to the user; a ``raise KeyboardInterrupt`` does not."""

    def called(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - as around each author's function
            raise_interrupt(error)
            return error
        return None

    def interrupts():
        raise KeyboardInterrupt

    with Interrupts().watched():
        assert isinstance(called(interrupts), KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            called(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # nobody watches: it may be the user's
        called(interrupts)


def test_other_threads_are_left_alone():
    """Python runs signal handlers in the main thread only; in another one the block is a plain block."""
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with Interrupts().held_back():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("early", [True, False])
def test_an_interrupt_comes_at_once_where_it_is_let_through(early):
    """While an engine is waited for, a Ctrl-C ends the wait; one that came before it too."""
    interrupts, done = Interrupts(), []

    def block():
        with interrupts.held_back():
            if early:
                signal.raise_signal(signal.SIGINT)
            done.append("changed")
            with interrupts.let_through():
                signal.raise_signal(signal.SIGINT)
                done.append("never")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["changed"]


def test_after_it_was_let_through_an_interrupt_is_held_back_again():
    """What follows the wait is done before the KeyboardInterrupt comes."""
    interrupts, done = Interrupts(), []

    def block():
        with interrupts.held_back():
            with interrupts.let_through():
                pass
            signal.raise_signal(signal.SIGINT)
            done.append("changed")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["changed"]


@pytest.mark.parametrize("edge", ["start", "end"])
def test_an_interrupt_at_an_edge_of_the_block_leaves_the_next_one_whole(monkeypatch, edge):
    """A Ctrl-C that comes just before it is held back, or just after, does not keep later ones from being held back."""
    interrupts, done = Interrupts(), []
    before, change = signal.getsignal(signal.SIGINT), signal.signal

    def interrupted(signum, handler):
        if edge == "start" and handler is not before:
            signal.raise_signal(signal.SIGINT)
        changed = change(signum, handler)
        if edge == "end" and handler is before:
            signal.raise_signal(signal.SIGINT)
        return changed

    def block():
        with interrupts.held_back():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    def empty():
        with interrupts.held_back():
            pass

    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            empty()
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["all of it"]


def test_within_a_watch_each_block_holds_its_own_back(monkeypatch):
    """The handler is set once for all blocks; outside them a Ctrl-C comes at once."""
    interrupts, done, changes = Interrupts(), [], []
    change = signal.signal

    def counted(signum, handler):
        changes.append(handler)
        return change(signum, handler)

    def block(ctrl_c):
        with interrupts.held_back():
            ctrl_c()
            done.append("changed")

    monkeypatch.setattr(signal, "signal", counted)
    with interrupts.watched():
        for _ in range(3):
            block(lambda: None)
            with pytest.raises(KeyboardInterrupt):
                block(lambda: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    assert (len(done), len(changes)) == (6, 2)


def test_a_second_interrupt_leaves_nothing_of_the_first_to_the_next_block():
    """The first one, which was never let go, does not come after a block that nobody interrupts."""
    interrupts, done = Interrupts(), []

    def twice():
        with interrupts.held_back():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with interrupts.watched():
        with pytest.raises(KeyboardInterrupt):
            twice()
        with interrupts.held_back():
            done.append("changed")
    assert done == ["changed"]
