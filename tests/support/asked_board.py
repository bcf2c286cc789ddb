"""A board of jobs with room for files, and a server of these jobs that is asked without a socket."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from vllm_mmout.serving.image_routes import results
from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.serving.service import ForwardService
from vllm_mmout.wings.jobs.server.board import SceneBoard
from vllm_mmout.wings.jobs.server.job_routes import JobRoutes
from vllm_mmout.wings.jobs.server.runner import SceneRunner
from vllm_mmout.wings.map_tiles.tile_routes import TileRoutes
from vllm_mmout.wings.stac.item_routes import ItemRoutes


@contextmanager
def board_in(folder):
    """The jobs of a server whose store takes a gibibyte."""
    made = SceneBoard(ResultStore(folder / "store", 600, 1 << 30))
    yield made
    made.close()
    made.store.close()


def idle_runner(board):
    """A runner that starts no job."""
    return SceneRunner(board, lambda job: pytest.fail(f"{job} is not started again"))


def asking(board, runner):
    """Return a function that asks a server with these jobs for a path."""
    app = FastAPI()
    app.add_api_route("/v1/images/results/{name}", results, methods=["GET"], name="mmout_result")
    extensions = JobRoutes(), TileRoutes(), ItemRoutes()
    for extension in extensions:
        extension.attach(app)
    app.state.mmout = ForwardService(None, None, None, board.store, None, None)
    app.state.args = SimpleNamespace(api_key=None)

    async def asked(path, headers):
        for extension in extensions[1:]:
            await extension.start(app.state.mmout, app.state)
        app.state.mmout_scenes = runner
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://maps.example") as client:
            return await client.get(path, headers=headers)

    return lambda path, **headers: asyncio.run(asked(path, headers))
