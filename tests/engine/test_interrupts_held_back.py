"""Ctrl-C while an engine in this process is in the middle of a step."""

from __future__ import annotations

import signal
import threading

import pytest

from vllm_mmout.engine.interrupts import interrupts_held_back


def test_one_interrupt_waits_for_the_end_of_the_block():
    """What the block does is done before the KeyboardInterrupt comes."""
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")
    assert done == ["all of it"]


def test_a_second_interrupt_goes_through():
    """A user who insists is not made to wait."""
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("never")
    assert done == []


@pytest.mark.parametrize("error", [None, LookupError])
def test_the_handler_is_put_back(error):
    """After the block, however it ends, the handler is that from before."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with interrupts_held_back():
            assert signal.getsignal(signal.SIGINT) is not before
            if error is not None:
                raise error
    except LookupError:
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_left_alone():
    """Python runs signal handlers in the main thread only; in another one the block is a plain block."""
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with interrupts_held_back():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
