"""Fixtures: servers, made once a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Server, served


@pytest.fixture(scope="session")
def water_server() -> Iterator[Server]:
    """A server of the embedded model, with the flags that a user gets by default."""
    with served("water-index") as server:
        yield server
