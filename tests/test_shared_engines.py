"""An engine that tests share ends after the last of them, so that all of a session's do not fill the memory at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"
CONFTEST = """
import pytest
from shared_engines import Plugin

def pytest_configure(config):
    config.pluginmanager.register(Plugin())

@pytest.fixture(scope="session")
def first_server():
    yield
    print("first ends")

@pytest.fixture(scope="session")
def second_server():
    yield
    print("second ends")

@pytest.fixture(scope="session")
def llm():
    yield
    print("llm ends")
"""
TESTS = {
    "test_a.py": "def test_a(first_server, second_server): print('a')",
    "test_b.py": "def test_b(first_server): print('b')",
    "test_c.py": "def test_c(second_server): print('c')",
    "test_d.py": "def test_d(llm): print('d')\ndef test_e(llm): print('e')",
    "test_f.py": "def test_f(): print('f')",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the tests print, and the ends of their engines, in their order."""
    pytest.importorskip("xdist", reason="shares tests among two workers")
    folder = tmp_path_factory.mktemp("shared")
    (folder / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(SUPPORT)!r})\n{CONFTEST}")
    for name, text in TESTS.items():
        (folder / name).write_text(f"import pytest\npytestmark = pytest.mark.engine\n{text}\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = engine\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:schemathesis",
        str(folder),
    ]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    words = ran.stdout.replace(".", "\n").splitlines()
    return [word.strip() for word in words if word.strip() in {*"abcdef", "first ends", "second ends", "llm ends"}]


def test_each_ends_behind_the_last_test_that_asks_for_it(said):
    for engine, users in (("first ends", "ab"), ("second ends", "ac"), ("llm ends", "de")):
        last = max(said.index(user) for user in users)
        between = said[last + 1 : said.index(engine)]
        assert said.index(engine) > last
        assert all(word.endswith(" ends") for word in between)


def test_none_ends_twice(said):
    assert sorted(said) == sorted([*"abcdef", "first ends", "second ends", "llm ends"])
