from __future__ import annotations

import sys
import threading

import pytest

pytest.importorskip("torch", reason="vllm_mmout.testing needs it")

from vllm_mmout.processors import TensorProcessor
from vllm_mmout.testing.threads import interleaved, lines_of, packages_of

pytestmark = pytest.mark.engine

HERE = {__name__}


class Cell:
    """A value that is read, changed and written in three lines."""

    def __init__(self):
        self.value = 0
        self.lock = threading.Lock()

    def add(self):
        seen = self.value
        seen += 1
        self.value = seen
        return seen

    def add_alone(self):
        with self.lock:
            return self.add()


def test_each_line_is_a_place_to_stop():
    """Exactly the stops between reading and writing lose a change, and they do every time."""
    lines = lines_of(Cell().add, HERE)
    assert lines == 4
    for _ in range(5):
        lost = []
        for line in range(lines + 2):
            cell = Cell()
            interleaved(cell.add, cell.add, line, HERE)
            lost.append(cell.value == 1)
        assert lost == [False, True, True, False, False, False]


def test_a_lock_is_waited_for():
    """Where the other call waits for a lock that the stopped one holds, both come to their end."""
    for line in range(lines_of(Cell().add_alone, HERE)):
        cell = Cell()
        assert sorted(interleaved(cell.add_alone, cell.add_alone, line, HERE)) == [1, 2]


def test_tracing_is_put_back():
    """A debugger's or a coverage tool's trace function is the same after it, also after an exception."""
    before = sys.gettrace()

    def trace(frame, event, argument):
        return None

    sys.settrace(trace)
    try:
        with pytest.raises(ZeroDivisionError):
            lines_of(lambda: 1 / 0, HERE)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


def test_other_packages_do_not_count():
    """Only the lines of the author's packages are counted; ours are where the class is ours."""

    class Mine(TensorProcessor):
        pass

    assert lines_of(Cell().add, {"nobody"}) == 0
    assert packages_of(Mine()) == HERE
    assert packages_of(TensorProcessor()) == {"vllm_mmout"}
