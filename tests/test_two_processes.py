"""``pytest --two-processes``: each test is run once, by one of two processes, and the first tells of all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"
CONFTEST = """
import two_processes

def pytest_configure(config):
    config.addinivalue_line("markers", "engine: of an engine")
    config.pluginmanager.register(two_processes.plugin())
"""
WAITS = """
import os, time
from pathlib import Path

def test_of_the_first():
    Path("first").write_text(str(os.getpid()))
    deadline = time.monotonic() + 120
    while not Path("second").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""
COMES = """
import os, pytest
from pathlib import Path

def test_of_the_second():
    Path("second").write_text(str(os.getpid()))

def test_that_ends():
    how = os.environ["ENDS"]
    assert how != "fails", "the second has failed"
    if how == "dies":
        os._exit(7)

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass
"""


@pytest.fixture
def run(tmp_path):
    """Runs three files of tests, of which the first one waits for what the last one does.

    Each process takes the next file before it has ended the one before.
    """
    between = "def test_of_either(): pass"
    files = {"conftest.py": CONFTEST, "test_a.py": WAITS, "test_b.py": between, "test_c.py": COMES}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def run(ends):
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SUPPORT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "ENDS": ends},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def test_the_first_reports_what_both_have_run(run, tmp_path):
    """Each file is run by another process, and the summary counts the tests of both."""
    done = run("well")
    assert "= 4 passed, 1 skipped in " in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert done.returncode == 0
    assert (tmp_path / "first").read_text() != (tmp_path / "second").read_text()


def test_a_failure_of_the_second_is_one_of_the_first(run):
    """It is shown as the first's own are, and counts."""
    done = run("fails")
    assert "FAILED test_c.py::test_that_ends - AssertionError: the second has failed" in done.stdout
    assert "= 1 failed, 3 passed, 1 skipped in " in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert done.returncode == 1


def test_a_second_that_dies_is_an_error(run):
    """Nobody takes the tests that it had for passed ones."""
    done = run("dies")
    assert "the second process ended with 7" in done.stdout + done.stderr
    assert done.returncode not in (0, 1)
