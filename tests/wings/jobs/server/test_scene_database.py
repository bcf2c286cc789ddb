"""SceneDatabase: what is known of jobs, the same for all threads and processes."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.jobs.server.database import MOST_STARTS, NOBODY, SceneDatabase
from vllm_mmout.wings.jobs.server.job import ClassRow, SceneError, SceneJob, SceneOutput

ERROR = SceneError("server_ended", "it ended; 'é' \0 \U0001f30d")
WATER = ClassRow(id=1, name="water", color="#56b4e9", pixels=3, share=0.75, area_m2=2700.0)
OUTPUT = SceneOutput(
    processor="segmentation",
    output_format="tiff",
    media_type="image/tiff",
    bytes=123,
    size="4x1",
    classes=(WATER, msgspec.structs.replace(WATER, id=2, name=None, area_m2=None)),
    stored="a.tif",
    preview="a.png",
)
PLAIN = msgspec.structs.replace(OUTPUT, processor="numbers", classes=None, size=None, stored="b.npz", preview=None)
NAME = "sc'ene\"; DROP TABLE scenes; --é\U0001f30d.tif"


def job(number, server="one", nbytes=1, **more):
    """A queued job."""
    return SceneJob(
        id=f"scene_{number}", server=server, model="m", name=NAME, nbytes=nbytes, created_at=1e9 + number, **more
    )


@pytest.fixture
def path(tmp_path):
    """Of the file."""
    return tmp_path / "scenes.sqlite"


@pytest.fixture
def database(path):
    """One server's."""
    made = SceneDatabase(path)
    yield made
    made.close()


@pytest.fixture
def other(database, path):
    """Another server's of the same file."""
    made = SceneDatabase(path)
    yield made
    made.close()


def test_a_job_comes_back_as_it_was_added(database, other):
    """All that is known of a job, whatever its texts, is read by every server as it was written."""
    made = job(1, tiles_total=7, started_at=2.5, expires_at=3.25, outputs=(OUTPUT, PLAIN), error=ERROR)
    assert database.add(made, most=1, most_bytes=1) is None
    assert database.get(made.id) == other.get(made.id) == made
    assert database.get("scene_2") is None


@pytest.mark.parametrize(("most", "most_bytes"), [(2, 100), (100, 20)])
def test_no_more_jobs_than_there_is_place_for(database, other, most, most_bytes):
    """Unfinished jobs of all servers count, and the bytes they hold; a finished or deleted one makes place."""
    limits = {"most": most, "most_bytes": most_bytes}
    assert database.add(job(1, nbytes=10), **limits) is None
    assert other.add(job(2, "two", nbytes=10), **limits) is None
    for one in (database, other):
        assert one.add(job(3, nbytes=1), **limits) == 2
    assert database.get("scene_3") is None
    other.change("scene_2", of="two", status="in_progress")
    assert other.add(job(3, nbytes=1), **limits) == 2
    other.change("scene_2", of="two", status="completed")
    assert other.add(job(3, nbytes=10), **limits) is None
    assert database.add(job(4, nbytes=1), **limits) == 2
    database.delete("scene_1")
    assert database.add(job(4, nbytes=10), **limits) is None


def test_a_file_larger_than_all_bytes_is_taken_alone(database):
    """What fits the limit of an upload is run, when nothing else is held."""
    assert database.add(job(1, nbytes=101), most=9, most_bytes=100) is None
    assert database.add(job(2, nbytes=0), most=9, most_bytes=100) == 1


def test_what_is_finished_is_not_changed(database):
    """Neither a finished job nor a deleted one begins again, fails or gets results."""
    for number, status in ((1, "completed"), (2, "failed")):
        database.add(job(number), most=9, most_bytes=9)
        assert database.change(f"scene_{number}", of="one", status=status, tiles_done=1)
        before = database.get(f"scene_{number}")
        assert not database.change(f"scene_{number}", of="one", status="in_progress", outputs=(OUTPUT,))
        assert database.get(f"scene_{number}") == before
    assert not database.change("scene_3", of="one", status="in_progress")


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages(database, other, order):
    """Each order has every job once, whatever the limit, and says whether more follow."""
    for number in (3, 1, 2, 5, 4):
        database.add(job(number), most=9, most_bytes=9)
    other.delete("scene_2")
    ids = ["scene_3", "scene_1", "scene_5", "scene_4"][:: 1 if order == "asc" else -1]
    for limit in range(1, 6):
        for start in range(5):
            jobs, more = other.page(limit, ids[start - 1] if start else None, order)
            assert [one.id for one in jobs] == ids[start : start + limit]
            assert more == (start + limit < 4)
    assert database.page(9, "scene_2", order) is None


def test_a_preview_is_asked_for_once(database, other):
    """The server of the job is told the next time that it looks, and not again."""
    for number, server in enumerate(("one", "one", "two")):
        database.add(job(number, server), most=9, most_bytes=9)
    for number in (1, 2, 9):
        other.ask_preview(f"scene_{number}")
    assert database.running("one") == {"scene_0": False, "scene_1": True}
    assert database.running("one") == {"scene_0": False, "scene_1": False}
    assert database.running("two") == {"scene_2": True}


def test_what_servers_of_dead_jobs_leave(database):
    """The unfinished jobs of one server fail, with the names of what they may have stored; all others stay."""
    for number, server in enumerate(("one", "one", "two", "one")):
        database.add(job(number, server), most=9, most_bytes=9)
    database.change("scene_0", of="one", outputs=(OUTPUT, PLAIN))
    database.change("scene_3", of="one", status="completed", outputs=(OUTPUT,))
    assert sorted(database.servers()) == ["one", "two"]
    assert sorted(database.fail_all("one", ERROR, 5.0, 6.0)) == ["a.png", "a.tif", "b.npz"]
    assert database.servers() == ["two"]
    for number in (0, 1):
        found = database.get(f"scene_{number}")
        assert (found.status, found.error, found.outputs) == ("failed", ERROR, ())
        assert (found.completed_at, found.expires_at) == (5.0, 6.0)
    assert database.get("scene_2").status == "queued"
    assert database.get("scene_3").outputs == (OUTPUT,)
    assert database.fail_all("one", ERROR, 7.0, 8.0) == []
    assert database.get("scene_0").completed_at == 5.0


def test_every_way_of_removing_the_file(database, other, path):
    """After somebody removed the file, alone or with what SQLite has beside it, all servers share a new one."""
    for number, names in enumerate([("",), ("", "-wal", "-shm"), ("", "-wal", "-shm")]):
        assert database.add(job(number), most=9, most_bytes=9) is None
        assert other.get(f"scene_{number}") is not None
        for name in names:
            Path(f"{path}{name}").unlink()
        assert other.get(f"scene_{number}") is None
        assert other.add(job(number + 100), most=1, most_bytes=9) is None
        assert database.get(f"scene_{number + 100}") == other.get(f"scene_{number + 100}") != None  # noqa: E711
        assert database.get(f"scene_{number}") is None
        database.delete(f"scene_{number + 100}")
    database.close()
    other.close()
    assert database.servers() == []
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_folder_that_was_removed(tmp_path):
    """The file comes back in a folder that its owner makes again when it is needed."""
    folder = tmp_path / "results"
    database = SceneDatabase(folder / "scenes.sqlite", lambda: folder.mkdir(exist_ok=True))
    database.add(job(1), most=9, most_bytes=9)
    shutil.rmtree(folder)
    assert database.get("scene_1") is None
    assert database.add(job(2), most=9, most_bytes=9) is None
    assert database.get("scene_2") == job(2)
    database.close()


def test_a_file_that_is_none_of_ours_is_refused(path):
    """What is no database, or somebody else's, is named, and left as it is."""
    path.write_bytes(b"notes, " * 1000)
    with pytest.raises(OptionError, match=r"scenes\.sqlite is not a job database .*choose another folder"):
        SceneDatabase(path)
    assert path.read_bytes() == b"notes, " * 1000
    path.unlink()
    for table in ("scenes", "others"):
        foreign(path, f"CREATE TABLE {table} (a TEXT)")
        with pytest.raises(OptionError, match="is not a job database, but has"):
            SceneDatabase(path)
        assert tables(path) == {table}
        path.unlink()


def test_a_file_of_another_release_is_refused(path):
    """A version that is not this one's is not touched."""
    SceneDatabase(path).close()
    foreign(path, "PRAGMA user_version = 1")
    with pytest.raises(OptionError, match="another release of vllm-mmout; choose another folder"):
        SceneDatabase(path)
    foreign(path, "PRAGMA user_version = 4")
    SceneDatabase(path).close()


def foreign(path, statement):
    """Change a file as somebody else."""
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def tables(path):
    """The names of a file's tables."""
    with sqlite3.connect(path) as connection:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return found


MANY = """
import sys
from pathlib import Path

from vllm_mmout.wings.jobs.server.database import SceneDatabase
from vllm_mmout.wings.jobs.server.job import SceneJob

assert "vllm" not in sys.modules
name, path = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
database, added = SceneDatabase(Path(path)), []
for number in range(40):
    job = SceneJob(id=f"scene_{name}_{number}", server=name, model="m", name="n", nbytes=1, created_at=number)
    full = database.add(job, most=60, most_bytes=1000)
    assert full in (None, 60), full
    added += [job.id] if full is None else []
    assert set(database.running(name)) == set(added)
print(len(added), flush=True)
"""
"""What each of several servers does that begin at the same time."""


@pytest.mark.heavy
def test_processes_share_the_limit(path):
    """Servers that make the file and add jobs at the same time add as many together as there is place for."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    servers = [subprocess.Popen([sys.executable, "-c", MANY, f"s{one}", str(path)], **pipes) for one in range(4)]
    for server in servers:
        assert server.stdout.readline() == "ready\n"
    for server in servers:
        server.stdin.write("go\n")
        server.stdin.flush()
    added = [int(server.communicate(timeout=300)[0]) for server in servers]
    assert [server.returncode for server in servers] == [0] * 4
    assert sum(added) == 60
    database = SceneDatabase(path)
    jobs, more = database.page(100, None, "asc")
    database.close()
    assert (len({job.id for job in jobs}), more) == (60, False)


@pytest.mark.heavy
def test_threads_that_open_a_new_file_at_once(tmp_path):
    """However many servers make the file at the same moment, each gets it."""
    for turn in range(40):
        path, begin = tmp_path / f"{turn}.sqlite", threading.Barrier(8)

        def opened(number, path=path, begin=begin):
            begin.wait()
            database = SceneDatabase(path)
            full = database.add(job(number), most=9, most_bytes=9)
            database.close()
            return full

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(opened, range(8))) == [None] * 8


def test_threads_may_share_one(database):
    """What many threads change at once is all there afterwards."""

    def work(number):
        for step in range(20):
            one = f"scene_{number * 100 + step}"
            assert database.add(job(number * 100 + step), most=1000, most_bytes=1000) is None
            assert database.change(one, of="one", tiles_done=step, tiles_total=20)
            assert database.get(one).tiles_done == step
            assert database.page(5, one, "asc") is not None
            if step % 2:
                assert database.delete(one).tiles_done == step

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert len(database.running("one")) == 80


def startable(one):
    """Whether a job may be started again."""
    return one.request is not None and one.starts < MOST_STARTS


SERVERS = st.sampled_from(["one", "two", NOBODY])
WORN_OUT = SceneError("server_ended", "too often")
WITHOUT = {"outputs": (), "request": None}
ANEW = {
    **dict.fromkeys(("tiles_total", "started_at", "expires_at", "error")),
    "status": "queued",
    "tiles_done": 0,
    "outputs": (),
}
STATES = ["queued", "in_progress", "completed", "failed"]
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(STATES),
        "tiles_done": st.integers(0, 9),
        "tiles_total": st.none() | st.integers(0, 9),
        "started_at": st.none() | st.floats(0, 1e10),
        "expires_at": st.none() | st.floats(0, 1e10),
        "outputs": st.lists(st.sampled_from([OUTPUT, PLAIN]), max_size=2).map(tuple),
        "error": st.none() | st.just(ERROR),
        "request": st.none() | st.just("{}"),
        "starts": st.integers(0, MOST_STARTS),
    },
).filter(bool)


class Life(RuleBasedStateMachine):
    """Two servers' databases against a perfect model of them: jobs in the order in which they were added."""

    @initialize(begin_with=st.integers(0, 6))
    def begin(self, begin_with):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "scenes.sqlite"
        self.both = [SceneDatabase(self.path) for _ in range(2)]
        self.model: dict[str, SceneJob] = {}
        self.asked: set[str] = set()
        self.count = 0
        for _ in range(begin_with):
            self.add("one", 1, 9, 99, 0)

    def unfinished(self, server=None):
        return [one for one in self.model.values() if not one.finished and server in (None, one.server)]

    @rule(
        server=SERVERS,
        nbytes=st.integers(0, 9),
        most=st.integers(0, 6),
        most_bytes=st.integers(1, 20),
        which=st.integers(0, 1),
    )
    def add(self, server, nbytes, most, most_bytes, which):
        self.count += 1
        made, there = job(self.count, server, nbytes), self.unfinished()
        full = self.both[which].add(made, most=most, most_bytes=most_bytes)
        if len(there) >= most or (there and sum(one.nbytes for one in there) + nbytes > most_bytes):
            assert full == len(there)
        else:
            assert full is None
            self.model[made.id] = made

    def some(self, data):
        """An id, of a job that is there or not."""
        return data.draw(st.sampled_from([*self.model, "scene_0", "scene_1", ""]))

    @rule(data=st.data(), values=CHANGES, of=SERVERS, which=st.integers(0, 1))
    def change(self, data, values, of, which):
        one = self.some(data)
        there = self.model.get(one)
        changed = there in self.unfinished(of)
        assert self.both[which].change(one, of=of, **values) is changed
        if changed:
            self.model[one] = msgspec.structs.replace(there, **values)

    @rule(data=st.data(), which=st.integers(0, 1))
    def delete(self, data, which):
        one = self.some(data)
        assert self.both[which].delete(one) == self.model.pop(one, None)
        self.asked.discard(one)

    @rule(data=st.data(), limit=st.integers(1, 5), order=st.sampled_from(["asc", "desc"]), which=st.integers(0, 1))
    def page(self, data, limit, order, which):
        after = data.draw(st.none() | st.sampled_from([*self.model, "scene_0"]))
        jobs = list(self.model.values())[:: 1 if order == "asc" else -1]
        found = self.both[which].page(limit, after, order)
        if after is not None and after not in self.model:
            assert found is None
            return
        start = 0 if after is None else [one.id for one in jobs].index(after) + 1
        assert found == (jobs[start : start + limit], len(jobs) > start + limit)

    @rule(data=st.data(), which=st.integers(0, 1))
    def ask(self, data, which):
        one = self.some(data)
        self.both[which].ask_preview(one)
        if one in self.model and not self.model[one].finished:
            self.asked.add(one)

    @rule(server=SERVERS, which=st.integers(0, 1))
    def running(self, server, which):
        there = {one.id: one.id in self.asked for one in self.unfinished(server)}
        assert self.both[which].running(server) == there
        self.asked -= set(there)

    @rule(server=SERVERS, which=st.integers(0, 1))
    def fail(self, server, which):
        there = self.unfinished(server)
        names = self.both[which].fail_all(server, ERROR, 7.5, 8.5, worn_out=WORN_OUT)
        failed = []
        for one in there:
            if startable(one) and one.expires_at is None:
                changed = {"status": "queued", "expires_at": 8.5}
            elif startable(one) and one.expires_at > 7.5:
                changed = {}
            else:
                failed.append(one)
                error = WORN_OUT if one.starts == MOST_STARTS else ERROR
                changed = {"status": "failed", "completed_at": 7.5, "expires_at": 8.5, "error": error, **WITHOUT}
            self.model[one.id] = msgspec.structs.replace(one, **changed)
        assert sorted(names) == sorted(name for one in failed for name in one.stored)

    @rule(dead=SERVERS, server=SERVERS, serves=st.booleans(), which=st.integers(0, 1))
    def take_over(self, dead, server, serves, which):
        there = [one for one in self.unfinished(dead) if serves and startable(one)]
        taken, names = self.both[which].take_over(dead, server, lambda model: serves and model == "m")
        for one in there:
            self.model[one.id] = msgspec.structs.replace(one, server=server, **ANEW)
        assert sorted(taken, key=lambda one: one.id) == sorted(
            (self.model[one.id] for one in there), key=lambda one: one.id
        )
        assert sorted(names) == sorted(name for one in there for name in one.stored)

    @rule(data=st.data(), server=SERVERS, which=st.integers(0, 1))
    def give_up(self, data, server, which):
        one = self.some(data)
        there = self.model.get(one)
        given = there in self.unfinished(server) and startable(there)
        assert self.both[which].release(one, server) is given
        if given:
            self.model[one] = msgspec.structs.replace(there, server=NOBODY, **ANEW)

    @rule(which=st.integers(0, 1))
    def again(self, which):
        self.both[which].close()

    @rule(more=st.booleans(), seldom=st.integers(0, 4))
    def removed(self, more, seldom):
        if seldom:
            return
        for name in ("", "-wal", "-shm") if more else ("",):
            Path(f"{self.path}{name}").unlink(missing_ok=True)
        self.model, self.asked = {}, set()

    @invariant()
    def both_know_the_same(self):
        for one in self.both if self.count % 2 else self.both[::-1]:
            assert one.page(100, None, "asc") == (list(self.model.values()), False)
            assert sorted(one.servers()) == sorted({job.server for job in self.unfinished()})
            found = {job.id: job for job in one.finished()}
            assert found == {name: job for name, job in self.model.items() if job.finished}
        for name in list(self.model)[:3]:
            assert self.both[0].get(name) == self.model[name]

    def teardown(self):
        for one in self.both:
            one.close()
        self.folder.cleanup()


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestLife = Life.TestCase


def test_a_full_file_can_be_written_again_when_it_has_room(database, other):
    """An error in the middle of a change leaves no change half done, and none that keeps others out."""
    connection = database._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")

    def fill():
        for number in range(1000):
            database.add(job(number), most=10_000, most_bytes=10**6)

    with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
        fill()
    assert other.add(job(2000), most=10_000, most_bytes=10**6) is None
    connection.execute(f"PRAGMA max_page_count = {2**30}")
    assert database.add(job(2001), most=10_000, most_bytes=10**6) is None


def test_a_change_that_cannot_be_committed_keeps_nobody_out(database, other, monkeypatch):
    """Where COMMIT itself fails, as on a disk that does, the change is undone."""

    class Failing:
        def __init__(self, connection):
            self.connection = connection

        def __getattr__(self, name):
            return getattr(self.connection, name)

        def execute(self, statement, *values):
            if statement == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")
            return self.connection.execute(statement, *values)

    monkeypatch.setattr(database, "_connection", Failing(database._connection))
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        database.add(job(1), most=1, most_bytes=10)
    assert other.add(job(2), most=1, most_bytes=10) is None
    assert database.get("scene_1") is None


def test_a_damaged_row_keeps_no_job_unfinished(database, path):
    """Jobs of a dead server fail, and a damaged one can be deleted, though nobody can read what it held."""
    for number in (1, 2):
        assert database.add(job(number), most=9, most_bytes=9) is None
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE scenes SET outputs = '[' WHERE id = 'scene_1'")
    connection.close()
    with pytest.raises(msgspec.DecodeError):
        database.fail_all("one", ERROR, 5.0, 6.0)
    assert database.servers() == []
    assert database.get("scene_2").status == "failed"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE scenes SET outputs = '[' WHERE id = 'scene_1'")
    connection.close()
    with pytest.raises(msgspec.DecodeError):
        database.delete("scene_1")
    assert database.get("scene_1") is None


def test_a_completed_job_says_what_was_assumed_about_its_input(database):
    """Sentences are kept with each result, and told once."""
    row = job(1)
    database.add(row, most=9, most_bytes=9)
    outputs = tuple(msgspec.structs.replace(one, assumed=("A fact.", "Another.")) for one in (OUTPUT, PLAIN))
    assert database.change(row.id, of="one", status="completed", outputs=outputs)
    assert database.get(row.id).described()["warnings"] == ["A fact.", "Another."]
    assert job(2).described()["warnings"] == []
