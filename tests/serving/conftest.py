"""Fixtures: servers, made once a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server, served


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory, holds: Path) -> Iterator[Server]:
    """A server of `served_models.AnyNet`, which takes any JSON and gives what no library knows."""
    from model_folders import folder_of
    from served_models import PLACES, PROCESSORS, AnyNet

    folder, _ = folder_of(tmp_path_factory.mktemp("own"), AnyNet, mmout={"output_processor": PROCESSORS})
    flags = ("--served-model-name", "any", "--mmout-max-waiting", str(PLACES), "--enable-server-load-tracking")
    with served(folder, *flags, environment={"MMOUT_TEST_HOLDS": str(holds)}) as server:
        yield server
