"""Fixtures: a folder of results and the jobs in it, as the servers of a machine share them."""

from __future__ import annotations

import time

import pytest

from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.wings.jobs.server.board import SceneBoard


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The time of boards and stores alike."""
    made = Clock()
    monkeypatch.setattr(time, "time", made)
    return made


@pytest.fixture
def make_board(tmp_path, clock, monkeypatch):
    """Makes boards of one folder, each as a server of its own has it; 1000 bytes of results, 10 seconds."""
    monkeypatch.setattr("vllm_mmout.serving.response.store._sweeping", lambda *_: None)
    made = []

    def make(folder=tmp_path / "results"):
        made.append(SceneBoard(ResultStore(folder, 10, 1000, clock=clock)))
        return made[-1]

    yield make
    for board in made:
        board.close()
        board.store.close()


@pytest.fixture
def board(make_board):
    """One server's."""
    return make_board()
