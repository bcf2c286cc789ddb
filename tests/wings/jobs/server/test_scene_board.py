"""SceneBoard: jobs and their results change together, whoever deletes, dies or makes room meanwhile."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.wings.jobs.server.board import FILE, SceneBoard
from vllm_mmout.wings.jobs.server.job import ClassRow, SceneError

LIMITS = {"most": 10, "most_bytes": 10_000}
LAND = ClassRow(id=0, name="land", color="#000000", pixels=4, share=1.0, area_m2=None)


def made(content=b"pixels", picture=b"picture", classes=(LAND,)):
    """What a processor's result became."""
    file = Encoded(content, "tiff", size=(2, 2))
    shown = None if picture is None else Encoded(picture, "png", size=(2, 2))

    def close():
        for one in (file, shown):
            if one is not None:
                one.close()

    return SimpleNamespace(file=file, picture=shown, classes=classes, seconds=None, assumed=(), close=close)


def added(board, **more):
    """A job of a server."""
    job = board.add(**{"model": "m", "name": "n.tif", "nbytes": 5, **LIMITS, **more})
    assert not isinstance(job, int)
    return job


def completed(board, clock, content=b"pixels", **more):
    """A job that is done."""
    clock.now += 0.01
    job = added(board)
    assert board.begin(job)
    assert board.complete(job.id, {("segmentation", None): made(content, **more)}, 4)
    return board.get(job.id)


def stored(board):
    """The results in the folder; nothing else is left there but what servers hold."""
    names = {path.name for path in board.store.folder.iterdir()}
    assert not [
        path for work in board.store.folder.glob(".server-*") for path in work.iterdir() if path.name != ".lock"
    ]
    return {name for name in names if not name.startswith((".server-", FILE))} - {".lock"}


def content(board, name):
    """The bytes of a result."""
    entry = board.store.find(name)
    data = entry.read(0, entry.nbytes)
    entry.close()
    return data


def test_a_job_from_its_beginning_to_its_end(board, make_board, clock):
    """Each step is seen by every server; when it is done the files are there, and go with it."""
    other = make_board()
    job = added(board)
    assert other.get(job.id) == job
    assert (job.status, job.tiles_total, job.created_at) == ("queued", None, clock.now)
    clock.now += 1
    assert board.begin(job)
    assert board.progress(job.id, 1, 4)
    seen = other.get(job.id)
    assert (seen.status, seen.started_at, seen.tiles_done, seen.tiles_total) == ("in_progress", clock.now, 1, 4)
    clock.now += 1
    results = {("segmentation", None): made(), ("numbers", None): made(b"numbers", None, None)}
    assert board.complete(job.id, results, 4)
    seen = other.get(job.id)
    assert (seen.status, seen.tiles_done, seen.tiles_total) == ("completed", 4, 4)
    assert (seen.completed_at, seen.expires_at) == (clock.now, clock.now + 10)
    one, two = seen.outputs
    assert (one.processor, one.output_format, one.media_type, one.bytes) == ("segmentation", "tiff", "image/tiff", 6)
    assert (one.size, one.classes, two.size, two.classes, two.preview) == ("2x2", (LAND,), "2x2", None, None)
    assert [content(other, name) for name in (one.stored, one.preview, two.stored)] == [
        b"pixels",
        b"picture",
        b"numbers",
    ]
    assert stored(board) == set(seen.stored)
    assert other.delete(job.id) == seen
    assert other.delete(job.id) is board.get(job.id) is None
    assert stored(board) == set()


def test_a_job_that_failed(board, clock):
    """It says why until its time is over, and counts no more."""
    job = added(board, most=1)
    assert board.fail(job, SceneError("BadRequestError", "5 bands"))
    seen = board.get(job.id)
    assert (seen.status, seen.error.message, seen.outputs) == ("failed", "5 bands", ())
    assert (seen.completed_at, seen.expires_at) == (clock.now, clock.now + 10)
    assert not board.begin(job)
    added(board, most=1)
    assert board.add(model="m", name="n", nbytes=1, most=1, most_bytes=100) == 1


class Moments:
    """Calls a function before one of the steps of `SceneBoard.complete`, or behind the last."""

    def __init__(self, board, monkeypatch, moment, act):
        self.count, self.moment, self.act = 0, moment, act
        for owner, name in ((board.store, "keep"), (board._database, "change"), (board.store, "new_name")):
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, function):
        def call(*arguments, **named):
            self.count += 1
            if self.count == self.moment:
                self.act()
            return function(*arguments, **named)

        return call


STEPS = 8
"""Two names a result, what is noted of them, two files, and that it is done; two results: one more name and file."""


@pytest.mark.parametrize("moment", range(1, STEPS + 1))
def test_a_job_deleted_while_it_is_completed(board, make_board, clock, monkeypatch, moment):
    """Whenever another server deletes it, nothing of it is left, its files are closed, and it is told so."""
    kept = completed(board, clock)
    other, job = make_board(), added(board)
    board.begin(job)
    moments = Moments(board, monkeypatch, moment, lambda: other.delete(job.id))
    results = {("segmentation", None): made(), ("numbers", None): made(b"numbers", None)}
    assert board.complete(job.id, results, 4) is False
    assert moments.count >= moment
    assert board.get(job.id) is None
    assert stored(board) == set(kept.stored)
    for result in results.values():
        with pytest.raises(ValueError, match="closed"):
            result.file.read(0, 1)


def test_every_step_of_completing_was_meant(board, monkeypatch):
    """The test above reaches the last step."""
    job = added(board)
    moments = Moments(board, monkeypatch, 0, None)
    assert board.complete(job.id, {("segmentation", None): made(), ("numbers", None): made(b"numbers", None)}, 4)
    assert moments.count == STEPS


@pytest.mark.parametrize("moment", [4, 5, 6, 7, 8])
def test_a_disk_that_fails_while_a_job_is_completed(board, clock, monkeypatch, moment):
    """Nothing of the job's results is left, and it can be told that it failed."""
    kept = completed(board, clock)
    job = added(board)
    board.begin(job)

    def full():
        raise OSError(28, "No space left on device")

    Moments(board, monkeypatch, moment, full)
    results = {("segmentation", None): made(), ("numbers", None): made(b"numbers", None)}
    with pytest.raises(OSError, match="No space left"):
        board.complete(job.id, results, 4)
    assert stored(board) == set(kept.stored)
    assert board.fail(job, SceneError("e", "m"))
    assert board.get(job.id).stored == []
    for result in results.values():
        with pytest.raises(ValueError, match="closed"):
            result.file.read(0, 1)


@pytest.mark.parametrize("sizes", [[1001], [600, 401], [400, 400, 201]])
def test_results_that_never_fit(board, clock, sizes):
    """A job whose results are together larger than all results may be fails, and no other's result goes for it."""
    kept = completed(board, clock)
    job = added(board)
    results = {(f"p{number}", None): made(bytes(size), None) for number, size in enumerate(sizes)}
    with pytest.raises(OptionError, match="--mmout-max-results"):
        board.complete(job.id, results, 4)
    assert stored(board) == set(kept.stored)
    assert board.get(job.id).status == "queued"


def test_the_oldest_results_make_room_and_their_jobs_go(board, make_board, clock):
    """A job of which a file had to go is forgotten by the next sweep of any server, with its other files."""
    other = make_board()
    one, two = completed(board, clock, bytes(500)), completed(board, clock, bytes(300))
    three = completed(other, clock, bytes(400))
    for name in two.stored + three.stored:
        assert board.store.has(name)
    assert not board.store.has(one.outputs[0].stored)
    jobs, more = other.page(10, None, "asc")
    assert ([job.id for job in jobs], more) == ([two.id, three.id], False)
    assert board.get(one.id) is None
    assert stored(board) == {*two.stored, *three.stored}


def test_jobs_go_when_their_time_is_over(board, clock):
    """Completed and failed ones cannot be asked for when they expire; rows and files go with the next sweep."""
    done, bad = completed(board, clock), added(board)
    board.fail(bad, SceneError("e", "m"))
    running = added(board)
    board.begin(running)
    clock.now = done.expires_at - 0.02
    assert [job.id for job in board.page(10, None, "desc")[0]] == [running.id, bad.id, done.id]
    clock.now = done.expires_at
    assert board.get(done.id) is board.get(bad.id) is None
    assert board.delete(bad.id) is None
    board.sweep()
    assert [job.id for job in board.page(10, None, "desc")[0]] == [running.id]
    assert stored(board) == set()
    clock.now += 1000
    assert board.get(running.id).status == "in_progress"


def test_whoever_runs_a_job_is_asked_for_its_picture(board, make_board):
    """The question comes to its server alone, once."""
    other = make_board()
    job, own = added(board), added(other)
    assert board.running() == {job.id: False}
    other.ask_preview(job.id)
    other.ask_preview("scene_none")
    assert other.running() == {own.id: False}
    assert board.running() == {job.id: True}
    assert board.running() == {job.id: False}


def test_a_folder_that_is_cleaned_away(board, make_board):
    """Every question is answered after somebody removed the folder, by all servers, and new jobs are run in it."""
    other, lost = make_board(), added(board)
    for ask in (
        lambda: board.get(lost.id) is None,
        lambda: board.page(10, None, "desc") == ([], False),
        lambda: board.running() == {},
        lambda: board.delete(lost.id) is None,
        lambda: not board.complete(lost.id, {("segmentation", None): made()}, 1),
        lambda: not board.progress(lost.id, 1, 2),
        lambda: not board.sweep(),
        lambda: board.store.sweep() is None,
    ):
        shutil.rmtree(board.store.folder)
        assert ask()
    job = added(other)
    assert board.get(job.id) == job
    assert other.complete(job.id, {("segmentation", None): made()}, 1)
    assert content(board, board.get(job.id).outputs[0].stored) == b"pixels"
    assert board.store.folder.stat().st_mode & 0o777 == 0o700


def test_threads_find_a_folder_cleaned_away_at_once(board, make_board):
    """However many threads of a server make it again at the same moment, none waits for another for ever."""
    other = make_board()
    for _ in range(10):
        shutil.rmtree(board.store.folder)
        begin = threading.Barrier(12)

        def work(number, begin=begin):
            begin.wait()
            board.store.shared.enter()
            return added(other if number % 3 == 0 else board, most=100).id

        with ThreadPoolExecutor(12) as threads:
            assert len(set(threads.map(work, range(12)))) == 12
        assert other.store.shared.lives(board.server)
        assert board.store.shared.lives(other.server)


SERVER = """
import sys
from pathlib import Path
from types import SimpleNamespace

from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.wings.jobs.server.board import SceneBoard
from vllm_mmout.serving.response.store import ResultStore

assert "vllm" not in sys.modules
folder, point = Path(sys.argv[1]), sys.argv[2]
board = SceneBoard(ResultStore(folder, 1e6, 1000))
job = board.add(model="m", name="n", nbytes=5, most=10, most_bytes=10_000)
keep, change, count = board.store.keep, board._database.change, [0]


def at(name):
    if name == point:
        print(board.server, job.id, flush=True)
        sys.stdin.readline()


def keeping(entry, name):
    count[0] += 1
    at(f"before file {count[0]}")
    original = Path.rename

    def rename(self, target):
        at(f"part of file {count[0]}")
        return original(self, target)

    Path.rename = rename
    try:
        return keep(entry, name)
    finally:
        Path.rename = original
        at(f"behind file {count[0]}")


def changing(job_id, **values):
    if values.get("status") == "completed":
        at("before it is completed")
    return change(job_id, **values)


board.store.keep, board._database.change = keeping, changing
at("queued")
board.begin(job)
board.progress(job.id, 1, 4)
(board.store.shared.work / f"{job.id}.png").write_bytes(b"growing")
at("running")
file, picture = Encoded(b"pixels", "tiff"), Encoded(b"picture", "png")
close = lambda: (file.close(), picture.close())
result = SimpleNamespace(file=file, picture=picture, classes=None, seconds=None, assumed=(), close=close)
board.complete(job.id, {("segmentation", None): result}, 4)
at("completed")
raise SystemExit(f"never at {point}")
"""
"""What a server does, to one of the points at which it may die."""
POINTS = [
    *("queued", "running", "before file 1", "part of file 1", "behind file 1"),
    *("before file 2", "part of file 2", "behind file 2", "before it is completed"),
]
OF_ONE_FILE = ("before file 1", "before file 2", "part of file 2")
"""Points that are told from their neighbours by how many files there are."""


@pytest.fixture
def dying(tmp_path):
    """Starts a server that goes to a point, and gives its process, its name and its job."""
    servers = []

    def start(point):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        servers.append(subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path / "results"), point], **pipes))
        name, job = servers[-1].stdout.readline().split()
        return servers[-1], name, job

    yield start
    for server in servers:
        with server:
            server.kill()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A server of the same folder that lives."""
    monkeypatch.setattr("vllm_mmout.serving.response.store._sweeping", lambda *_: None)
    board = SceneBoard(ResultStore(tmp_path / "results", 1e6, 1000))
    yield board
    board.close()
    board.store.close()


def killed(server):
    """End a server as the system does when memory is short."""
    process, _, _ = server
    process.send_signal(signal.SIGKILL)
    process.wait(60)


def listed(board, job_id):
    """A job as the list has it."""
    (found,) = (job for job in board.page(10, None, "desc")[0] if job.id == job_id)
    return found


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=[pytest.mark.slow] * (point in OF_ONE_FILE)) for point in POINTS]
)
def test_the_job_of_a_server_that_was_killed(own, dying, point):
    """It says what happened, whenever that was; nothing of its result or of its picture is left, others stay."""
    job, mine = added(own), added(own)
    own.complete(job.id, {("segmentation", None): made()}, 1)
    kept = own.get(job.id)
    server = dying(point)
    _, name, lost = server
    if not point.startswith("part"):  # there it holds the lock of the folder
        assert own.get(lost).status in ("queued", "in_progress")
        assert not own.sweep()
    killed(server)
    assert own.store.shared.work_of(name).exists()
    seen = own.get(lost) if POINTS.index(point) % 2 else listed(own, lost)
    assert (seen.status, seen.error.code, seen.outputs) == ("failed", "server_ended", ())
    assert "send it again" in seen.error.message
    assert seen.expires_at > seen.completed_at >= seen.created_at
    assert stored(own) == set(kept.stored)
    assert not own.store.shared.work_of(name).exists()
    assert own.get(kept.id) == kept
    assert own.get(mine.id) == mine


def test_what_a_killed_server_had_completed_stays(own, dying):
    """Its result is another server's to give."""
    server = dying("completed")
    killed(server)
    own.sweep()
    own.store.sweep()
    seen = own.get(server[2])
    assert (seen.status, seen.tiles_done) == ("completed", 4)
    assert [content(own, name) for name in seen.stored] == [b"pixels", b"picture"]
    assert stored(own) == set(seen.stored)


def test_jobs_of_killed_servers_take_no_place(own, dying):
    """A full server finds them when a new job comes."""
    servers = [dying("queued"), dying("running")]
    limits = {"model": "m", "name": "n", "nbytes": 5, "most_bytes": 1000}
    assert own.add(**limits, most=2) == 2
    killed(servers[0])
    one = own.add(**limits, most=2)
    assert own.get(one.id) == one
    assert own.add(**limits, most=2) == 2
    killed(servers[1])
    assert own.add(**limits, most=3) is not None
    for server in servers:
        assert own.get(server[2]).error.code == "server_ended"


def test_a_job_of_a_killed_server_is_deleted(own, dying):
    """Nothing of it is left, though nobody looked at it before."""
    server = dying("behind file 2")
    killed(server)
    assert own.delete(server[2]).id == server[2]
    assert own.get(server[2]) is None
    own.store.sweep()
    assert stored(own) == set()
