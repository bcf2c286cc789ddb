"""Fixtures: servers, made once a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_nursery import Nursery
from serving import Server, served


@pytest.fixture(scope="session")
def water_server() -> Iterator[Server]:
    """A server of the embedded model, with the flags that a user gets by default."""
    with served("water-index") as server:
        yield server


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory, holds: Path, nursery: Nursery) -> Iterator[Server]:
    """A server of `served_models.AnyNet`, which takes any JSON and gives what no library knows."""
    from model_folders import folder_of
    from served_models import PLACES, PROCESSORS, AnyNet

    folder, _ = folder_of(tmp_path_factory.mktemp("own"), AnyNet, mmout={"output_processor": PROCESSORS})
    flags = ("--served-model-name", "any", "--mmout-max-waiting", str(PLACES), "--enable-server-load-tracking")
    with served(folder, *flags, environment={"MMOUT_TEST_HOLDS": str(holds)}, nursery=nursery) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_server(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Iterator[Server]:
    """A server with a key and small limits, which may fetch from this machine, and read files of one folder.

    The folder is ``local`` in the one that the fixture `guarded_folder` names.
    """
    folder = tmp_path_factory.getbasetemp() / "guarded"
    (folder / "local").mkdir(parents=True)
    options = {
        "--api-key": "secret",
        "--mmout-max-waiting": 2,
        "--mmout-max-upload": "2M",
        "--mmout-result-ttl": 2,
        "--mmout-receive-timeout": 1,
        "--mmout-send-timeout": 1,
        "--allowed-media-domains": "127.0.0.1",
        "--allowed-local-media-path": folder / "local",
    }
    limits = {"MMOUT_FETCH_TIMEOUT": "1", "MMOUT_FETCH_RETRIES": "0", "MMOUT_FETCH_LIMIT": "1M"}
    flags = [str(text) for option in options.items() for text in option]
    with served("water-index", *flags, environment=limits, nursery=nursery) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_folder(guarded_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the folder ``local`` of `guarded_server`."""
    return tmp_path_factory.getbasetemp() / "guarded"
