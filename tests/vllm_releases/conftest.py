"""The hook against one vLLM: run once for each release by ``make test-engines``, which sets the environment for it.

``make test`` collects none of these: they are about releases that it does not have.
"""

from __future__ import annotations

import os

import pytest

collect_ignore_glob = [] if "MMOUT_TEST_ENGINE" in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def version():
    """The release under test, "installed" for the engine of this environment."""
    return os.environ["MMOUT_TEST_ENGINE"]


@pytest.fixture(scope="session")
def sources():
    """The folder of its sources, "" for the installed engine."""
    return os.environ["MMOUT_TEST_ENGINE_SOURCES"]
