"""Jobs of dead servers that can be started again: one living server has each, a few times, and only for its models."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from vllm_mmout.params import OutputParams
from vllm_mmout.serving.inputs.uploads import Upload
from vllm_mmout.serving.request.fields import ImageRequest
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.wings.jobs.server.board import SceneBoard
from vllm_mmout.wings.jobs.server.database import MOST_STARTS
from vllm_mmout.wings.jobs.server.kept_request import decode_request, encode_request

pytestmark = pytest.mark.engine  # its fields know vLLM's errors
LIMITS = {"name": "n.tif", "nbytes": 0, "most": 10, "most_bytes": 1000}


def added(board, request="{}", model="m"):
    """A job of a server that can be started again."""
    return board.add(**LIMITS, model=model, request=request)


def dies(board):
    """End a server with its jobs unfinished: the lock by which others see that it lives is free."""
    board.close()
    board.store.close()


def taken(board):
    """The jobs that a server has to run now."""
    found = []
    while not board.taken_over.empty():
        found.append(board.taken_over.get())
    return found


def test_one_living_server_takes_a_job_over(make_board):
    """However many look at the same moment; it is queued, from its beginning, by the same id."""
    dead, *living = (make_board() for _ in range(5))
    jobs = [added(dead) for _ in range(3)]
    for job in jobs:
        assert dead.begin(job)
        assert dead.progress(job.id, 2, 4)
    dies(dead)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda board: board.sweep(), living))
    had = [(board.server, job) for board in living for job in taken(board)]
    assert sorted(job.id for _, job in had) == sorted(job.id for job in jobs)
    for server, job in had:
        assert (job.server, job.status, job.starts, job.tiles_done) == (server, "queued", 1, 0)
        assert (job.tiles_total, job.started_at, job.error) == (None, None, None)
        assert {board.get(job.id) for board in living} == {job}


def test_what_was_being_stored_goes(make_board):
    """Files of a job whose server died while it stored them are nobody's."""
    dead, living = make_board(), make_board()
    job = added(dead)
    assert dead.begin(job)
    file = Encoded(b"pixels", "tiff")
    result = SimpleNamespace(file=file, picture=None, classes=None, seconds=None, assumed=(), close=file.close)
    change, dead._change = dead._change, lambda job_id, **values: "status" not in values and change(job_id, **values)
    dead._remove = lambda stored: None  # as far as it came
    assert not dead.complete(job.id, {("segmentation", None): result}, 4)
    (left,) = dead.get(job.id).stored
    assert living.store.has(left)
    dies(dead)
    assert living.get(job.id).stored == []
    assert not living.store.has(left)


def test_a_server_that_lost_its_job_changes_it_no_more(make_board):
    """One that others took for dead finds that the job is not its own."""
    first, second = make_board(), make_board()
    job = added(first)
    assert first.begin(job)
    first.store.shared.close()  # as somebody who cleans the folder does
    second.sweep()
    (mine,) = taken(second)
    assert not first.progress(job.id, 1, 4)
    assert not first.begin(job)
    assert first.running() == {}
    assert second.get(job.id) == mine


def test_a_job_that_ends_its_servers_is_given_up(make_board):
    """It is begun three times, by no server a fourth; one that only waited is not counted."""
    board = make_board()
    job = added(board)
    for begun in (False, *[True] * MOST_STARTS):
        starts = job.starts + begun
        assert not begun or board.begin(job)
        dies(board)
        board = make_board()
        board.sweep()
        if starts < MOST_STARTS:
            (job,) = taken(board)
            assert job.starts == starts
    assert taken(board) == []
    seen = board.get(job.id)
    assert (seen.status, seen.error.code, seen.request) == ("failed", "server_ended", None)
    assert f"{MOST_STARTS} times" in seen.error.message


def test_a_job_waits_for_a_server_of_its_model(make_board, clock, tmp_path):
    """For as long as results live; others leave it, and then it has failed."""
    store = ResultStore(tmp_path / "results", 10, 1000, clock=clock)
    other = SceneBoard(store, lambda model: model == "other")
    dead, later = make_board(), make_board()
    waits, fails = added(dead), added(dead)
    assert dead.begin(waits)
    dies(dead)
    other.sweep()
    clock.now += 9
    other.sweep()
    assert other.get(waits.id).status == "queued"
    assert other.delete(fails.id)
    later.sweep()
    assert [job.id for job in taken(later)] == [waits.id]
    assert later.get(waits.id).expires_at is None
    dies(later)
    other.sweep()
    clock.now += 11
    assert other.get(waits.id).error.code == "server_ended"
    assert taken(other) == []
    other.close()
    store.close()


def test_an_upload_fails(make_board):
    """Its file was the dead server's."""
    dead, living = make_board(), make_board()
    job = added(dead, request=None)
    dies(dead)
    living.sweep()
    assert living.get(job.id).status == "failed"
    assert taken(living) == []


OPTIONS = [
    OutputParams(),
    OutputParams(window=(1, 2, 30, 40), nodata=0, scale=(1.0, 2.0), bands=["a", "b"], overlap=4, tile=32),
    OutputParams(bbox=(8.4, 47.3, 8.7, 47.5), bbox_crs="EPSG:4326", processor=("a", "b"), dates=("2024-01-01",)),
    OutputParams(aoi={"type": "Polygon", "coordinates": [[[8, 47], [9, 47], [9, 48], [8, 47]]]}, aoi_crs="EPSG:4258"),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_request_comes_back_as_it_was(options):
    """What decides the result is kept, and no more: no name of a user, no text of a prompt."""
    asked = ImageRequest(
        images=("https://host/a.tif?key=1", "file:///b.tif"),
        options=options,
        model="m",
        output_format="png",
        output_compression=7,
        user="somebody",
        prompt="a text",
    )
    text = encode_request(asked)
    again = decode_request(text)
    assert again.options == options
    for name in ("images", "model", "output_format", "output_compression", "background"):
        assert getattr(again, name) == getattr(asked, name)
    assert set(json.loads(text)) <= {"images", "given", "model", "output_format", "output_compression", "background"}


def test_nodata_that_is_nan_comes_back():
    """JSON has no NaN, and without it a second server would use the file's own nodata."""
    asked = ImageRequest(images=("https://host/a.tif",), options=OutputParams(nodata=math.nan))
    assert math.isnan(decode_request(encode_request(asked)).options.nodata)


@pytest.mark.parametrize("image", [Upload("a.tif", None, 1), "data:image/png;base64,AAAA"])
def test_files_are_not_kept(image):
    """Neither those that were uploaded nor those in a text, which may be of any size."""
    assert encode_request(ImageRequest(images=("https://host/a.tif", image))) is None
