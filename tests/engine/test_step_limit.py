"""A step that hangs ends its engine, and an engine ends with the process that started it."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.engine.worker.step_limit import StepLimit
from vllm_mmout.errors import OptionError

pytestmark = pytest.mark.engine
LIMIT_S = 60
PARENT = """
import multiprocessing, os, time
from vllm_mmout.engine.worker.parent import end_with_parent

def core():
    end_with_parent()
    print("up", flush=True)
    time.sleep(600)

multiprocessing.get_context("fork").Process(target=core).start()
"""


def test_a_step_that_hangs_ends_the_engine():
    """The message has the limit and the setting. Steps within the limit change nothing."""
    hangs, ended = threading.Event(), queue.SimpleQueue()
    steps = iter([lambda: "first", lambda: hangs.wait(LIMIT_S)])

    def step():
        return next(steps)()

    core = SimpleNamespace(_process_engine_step=step)
    StepLimit(0.02, ended.put).watch(core)
    assert core._process_engine_step() == "first"
    hung = threading.Thread(target=core._process_engine_step)
    hung.start()
    assert "takes longer than 0.02 s (step_timeout_s)" in ended.get(timeout=LIMIT_S)
    hangs.set()
    hung.join()


def test_a_limit_of_no_time_is_refused():
    """With a limit of 0 no step could run."""
    with pytest.raises(OptionError, match="step_timeout_s"):
        EngineSettings.from_mapping({"step_timeout_s": 0})


def test_a_core_ends_when_its_parent_is_killed():
    """The pipe that the core writes to ends as soon as both processes are gone."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"up\n"
        parent.kill()
        assert parent.communicate(timeout=LIMIT_S)[0] == b""
