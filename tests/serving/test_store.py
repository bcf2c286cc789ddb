"""Stored results: their names, their time, the limit of their folder, and who may look into it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from files_open import open_below
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from starlette.applications import Starlette
from starlette.routing import Route

from vllm_mmout.errors import OptionError
from vllm_mmout.serving.errors import ApiError, error_response
from vllm_mmout.serving.image_routes import get_result
from vllm_mmout.serving.response.result_files import MEDIA_TYPES, SUFFIXES, Encoded, own_folder
from vllm_mmout.serving.response.store import ResultStore

pytestmark = pytest.mark.engine


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def clock() -> Clock:
    """A time of the test's own."""
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock):
    """A store of 100 bytes for 10 seconds, whose thread never wakes by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vllm_mmout.serving.response.store._sweeping", lambda *_: None)
        yield ResultStore(tmp_path / "results", 10, 100, clock=clock)


def on_disk(content: bytes, name: str = "tiff") -> Encoded:
    """A result in a file."""
    path = own_folder() / "result"
    path.write_bytes(content)
    return Encoded(path, name)


def found(store: ResultStore, name: str) -> bytes | None:
    """What a client would get."""
    entry = store.find(name)
    if entry is None:
        return None
    content = entry.read(0, entry.nbytes + 1)
    entry.close()
    return content


def names(store: ResultStore) -> set[str]:
    """The files in the folder, without the lock and what servers are working on, which must be nothing."""
    assert not [path for work in store.folder.glob(".server-*") for path in work.iterdir() if path.name != ".lock"]
    return {path.name for path in store.folder.iterdir() if not path.name.startswith(".server-")} - {".lock"}


@pytest.mark.parametrize("make", [on_disk, Encoded], ids=["disk", "memory"])
@pytest.mark.parametrize("name", [*MEDIA_TYPES, "bin"])
def test_what_is_kept_is_found(store, make, name, temporary):
    """Each format comes back with its bytes and media type, under a new name each time; nothing else is left."""
    kept = [store.keep(make(b"abc", name)) for _ in range(2)]
    assert len(set(kept)) == 2
    for one in kept:
        assert one.endswith(SUFFIXES.get(name, ".bin"))
        entry = store.find(one)
        assert (entry.format, entry.nbytes) == (name, 3)
        assert entry.media_type == MEDIA_TYPES.get(name, "application/octet-stream")
        entry.close()
        assert found(store, one) == b"abc"
        assert (store.folder / one).stat().st_mode & 0o777 == 0o600
    assert names(store) == set(kept)
    assert not list(temporary.iterdir())


def test_a_file_is_moved_not_copied(store):
    """A result on the same disk keeps its blocks."""
    entry = on_disk(b"abc")
    inode = entry._content.stat().st_ino
    assert (store.folder / store.keep(entry)).stat().st_ino == inode


def test_a_file_of_another_disk_is_copied(store, monkeypatch, temporary):
    """Where a rename is not possible the bytes are copied."""
    original = Path.rename

    def rename(self, target):
        if self.name == "result":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return original(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    name = store.keep(on_disk(b"abc" * 20))
    assert found(store, name) == b"abc" * 20
    assert (store.folder / name).stat().st_mode & 0o777 == 0o600
    assert not list(temporary.iterdir())


def test_names_cannot_be_guessed(store):
    """A name has 256 bits of the system's randomness."""
    kept = [store.keep(Encoded(b"", "png")) for _ in range(50)]
    assert {len(name) for name in kept} == {43 + len(".png")}
    assert len({name[:8] for name in kept}) == 50


def test_results_expire(store, clock):
    """A result can be fetched as long as said, not longer, and then its file goes with the next sweep."""
    name = store.keep(Encoded(b"abc", "png"))
    clock.now += 9.99
    store.sweep()
    assert found(store, name) == b"abc"
    clock.now += 0.02
    assert found(store, name) is None
    assert names(store) == {name}
    store.sweep()
    assert not names(store)


def test_the_oldest_go_first(store, clock):
    """Room is made by removing the oldest results, as few as needed."""
    kept = []
    for size in (40, 30, 20):
        kept.append(store.keep(Encoded(bytes(size), "png")))
        clock.now += 0.01
    kept.append(store.keep(Encoded(bytes(10), "png")))
    assert names(store) == set(kept)
    clock.now += 0.01
    kept.append(store.keep(Encoded(bytes(45), "png")))
    assert names(store) == set(kept[2:])
    kept.append(store.keep(on_disk(bytes(100))))
    assert names(store) == {kept[-1]}


@pytest.mark.parametrize("make", [on_disk, Encoded], ids=["disk", "memory"])
def test_what_is_larger_than_the_limit_is_refused(store, make, temporary):
    """It is told how to get the result otherwise; what was stored stays."""
    name = store.keep(Encoded(b"abc", "png"))
    with pytest.raises(OptionError, match=r"101 bytes, and 100 .*--mmout-max-results.*b64_json") as raised:
        store.keep(make(bytes(101), "png"))
    assert raised.value.param == "response_format"
    assert names(store) == {name}
    assert not list(temporary.iterdir())


def test_a_full_disk_leaves_nothing(store, monkeypatch, temporary):
    """What cannot be stored leaves neither part nor result, and the next one is stored."""
    original = os.utime

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "utime", full)
    for make in (on_disk, Encoded):
        with pytest.raises(OSError, match="No space left"):
            store.keep(make(b"abc", "png"))
    monkeypatch.setattr(os, "utime", original)
    assert not names(store)
    assert not list(temporary.iterdir())
    assert found(store, store.keep(Encoded(b"abc", "png"))) == b"abc"


def test_what_is_being_sent_stays_readable(store, clock):
    """A result that expires or is removed while it is sent is sent to its end."""
    name = store.keep(Encoded(b"abcdef", "png"))
    entry = store.find(name)
    assert entry.read(0, 2) == b"ab"
    clock.now += 100
    store.sweep()
    assert not names(store)
    assert entry.read(2, 100) == b"cdef"
    entry.close()


def test_what_a_server_left_expires_as_well(store, clock):
    """Results of a server that has ended go when they are old; files that are not ours stay."""
    token = "a" * 43
    for name in (f"{token}.png", f".{token}.part", "notes.png", f"{token}.exe", ".part"):
        (store.folder / name).write_bytes(b"x")
        os.utime(store.folder / name, (clock.now, clock.now))
    clock.now += 11
    store.sweep()
    assert names(store) == {f".{token}.part", "notes.png", f"{token}.exe", ".part"}


def test_a_clock_that_was_set_back(store, clock):
    """Results from a future farther than their time are gone, nearer ones can be fetched."""
    name = store.keep(Encoded(b"abc", "png"))
    clock.now -= 9
    assert found(store, name) == b"abc"
    clock.now -= 2
    assert found(store, name) is None


TOKEN = "A" * 43
BAD = [
    "",
    ".",
    "..",
    "../secret.png",
    "/etc/passwd",
    f"../{TOKEN}.png",
    f"{TOKEN}.png/..",
    f"{TOKEN}.png\0",
    f"{TOKEN}.png\n",
    f"{TOKEN}",
    f"{TOKEN}.PNG",
    f"{TOKEN}.exe",
    f".{TOKEN}.part",
    ".lock",
    "\u0661" * 43 + ".png",
    "A" * 42 + ".png",
    "A" * 44 + ".png",
    "\ud800",
    "A" * 100_000,
]


@pytest.mark.parametrize("name", BAD)
def test_names_that_are_none(store, name, monkeypatch):
    """What is not a name of ours is looked for nowhere."""
    (store.folder.parent / f"{TOKEN}.png").write_bytes(b"secret")

    def opened(*_):
        raise AssertionError("the file system was asked")

    monkeypatch.setattr("vllm_mmout.serving.response.store._opened", opened)
    assert store.find(name) is None


def test_no_name_leads_out_of_the_folder(store):
    """Whatever a client asks for, nothing is found that was not stored."""
    (store.folder.parent / "secret.png").write_bytes(b"secret")

    @given(st.text() | st.text(alphabet="A/.\0-_png", min_size=40, max_size=50))
    def ask(name):
        assert store.find(name) is None

    ask()


def test_links_are_not_followed(store, tmp_path):
    """A link, a folder and a pipe under a name of ours are no results; nothing waits for the pipe, nor stays open."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (store.folder / f"{TOKEN}.png").symlink_to(secret)
    (store.folder / f"{TOKEN}.npz").mkdir()
    os.mkfifo(store.folder / f"{TOKEN}.tif")
    for suffix in (".png", ".npz", ".tif"):
        assert store.find(TOKEN + suffix) is None
    assert [path for path in open_below(tmp_path) if not path.endswith("/.lock")] == []


def test_the_folder_is_for_this_user_alone(tmp_path):
    """A folder that is made has mode 0700 whatever the umask; its parents are made as well."""
    before = os.umask(0)
    try:
        ResultStore(tmp_path / "a" / "b", 10, 100).close()
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o770, 0o702])
def test_a_folder_that_is_open_to_others_is_refused(tmp_path, mode):
    """The error has the mode and the command that mends it, after which the folder is taken."""
    folder = tmp_path / "results"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(OptionError, match=f"open to other users \\(mode {mode:o}\\); chmod 700 {folder}"):
        ResultStore(folder, 10, 100)
    folder.chmod(0o700)
    ResultStore(folder, 10, 100).close()


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    """The folder must be the server's own."""
    folder = tmp_path / "results"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(OptionError, match=r"belongs to user .*, not to the server's"):
        ResultStore(folder, 10, 100)


def test_what_is_no_folder_is_refused(tmp_path):
    """A file in its place, or above it, is an error that names it."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OptionError, match="file is no folder"):
        ResultStore(tmp_path / "file", 10, 100)
    with pytest.raises(OptionError, match="below cannot be made"):
        ResultStore(tmp_path / "file" / "below", 10, 100)


def test_a_folder_that_was_removed_is_made_again(store):
    """A folder that somebody cleaned away comes back with the next result."""
    shutil.rmtree(store.folder)
    store.sweep()
    assert store.find(f"{TOKEN}.png") is None
    assert found(store, store.keep(Encoded(b"abc", "png"))) == b"abc"
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_temporary_folder_goes_with_the_store(temporary):
    """It is removed by close, or with the object."""
    store = ResultStore.temporary(10, 100)
    store.keep(Encoded(b"abc", "png"))
    assert store.folder.parent == temporary
    store.close()
    assert not list(temporary.iterdir())
    store = ResultStore.temporary(10, 100)
    del store
    gc.collect()
    assert not list(temporary.iterdir())


def test_results_expire_without_traffic(tmp_path):
    """A thread removes what has expired though nobody asks for anything, and ends with the store."""
    store = ResultStore(tmp_path / "results", 0.1, 100)
    store.keep(Encoded(b"abc", "png"))
    until = time.monotonic() + 120
    while names(store) and time.monotonic() < until:
        time.sleep(0.01)
    assert not names(store)
    (thread,) = [one for one in threading.enumerate() if one.name == "mmout-results" and one.is_alive()][-1:]
    store.close()
    thread.join(120)
    assert not thread.is_alive()


class Life(RuleBasedStateMachine):
    """A store against a perfect model of it: names with their bytes and times, in the order they were kept."""

    kept = Bundle("kept")

    @initialize(limit=st.integers(1, 60))
    def begin(self, limit):
        self.folder = tempfile.TemporaryDirectory()
        self.clock, self.limit = Clock(), limit
        # Two stores of one folder, as two processes have them.
        self.stores = [ResultStore(Path(self.folder.name) / "r", 10, limit, clock=self.clock) for _ in range(2)]
        for store in self.stores:
            store._stop.set()
        self.model: dict[str, tuple[float, bytes]] = {}

    def alive(self) -> dict[str, bytes]:
        return {name: content for name, (at, content) in self.model.items() if self.clock.now - at < 10}

    @rule(target=kept, content=st.binary(max_size=70), which=st.integers(0, 1), disk=st.booleans())
    def keep(self, content, which, disk):
        self.clock.now += 0.5
        entry = on_disk(content) if disk else Encoded(content, "png")
        if len(content) > self.limit:
            with pytest.raises(OptionError):
                self.stores[which].keep(entry)
            return "none"
        name = self.stores[which].keep(entry)
        self.model = {one: self.model[one] for one in self.alive()}
        while sum(len(one) for _, one in self.model.values()) + len(content) > self.limit:
            del self.model[next(iter(self.model))]
        self.model[name] = (self.clock.now, content)
        return name

    @rule(name=kept, which=st.integers(0, 1))
    def fetch(self, name, which):
        assert found(self.stores[which], name) == self.alive().get(name)

    @rule(seconds=st.sampled_from([0.25, 3, 9.75, 10, 30]))
    def wait(self, seconds):
        self.clock.now += seconds

    @rule(which=st.integers(0, 1))
    def sweep(self, which):
        self.stores[which].sweep()
        self.model = {one: self.model[one] for one in self.alive()}
        assert names(self.stores[which]) == set(self.model)

    @rule(name=consumes(kept))
    def removed_by_another(self, name):
        (self.stores[0].folder / name).unlink(missing_ok=True)
        self.model.pop(name, None)

    @invariant()
    def within_the_limit(self):
        if hasattr(self, "stores"):
            folder = self.stores[0].folder
            assert sum((folder / name).stat().st_size for name in names(self.stores[0])) <= self.limit

    def teardown(self):
        if hasattr(self, "stores"):
            for store in self.stores:
                store.close()
            self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(stateful_step_count=30)


FILLING = """
import sys
from pathlib import Path
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.serving.response.store import ResultStore

assert "vllm" not in sys.modules
store = ResultStore(Path(sys.argv[1]), 1000, 5000)
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    name = store.keep(Encoded(bytes(100 + number), "png"))
    entry = store.find(name)
    assert entry is None or entry.read(0, 1000) == bytes(100 + number)
    store.sweep()
"""
"""What each of several processes does: it stores and fetches, all at the same time."""


def test_processes_share_a_folder(tmp_path):
    """Processes that store at the same time fail nowhere, and the limit holds at every moment."""
    folder = tmp_path / "results"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", FILLING, str(folder)], **pipes) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    largest = 0
    while any(process.poll() is None for process in processes):
        with contextlib.suppress(FileNotFoundError):  # removed while it was looked at
            largest = max(largest, sum(path.stat().st_size for path in folder.glob("*.png")))
        time.sleep(0.001)
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert 0 < largest <= 5000 + 3 * 200
    store = ResultStore(folder, 1000, 5000)
    assert 4000 < sum((folder / name).stat().st_size for name in names(store)) <= 5000
    store.close()


def test_threads_share_a_store(tmp_path):
    """Requests that store at the same time each get their own result, and leave no part."""
    store = ResultStore(tmp_path / "results", 1000, 1 << 20)
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda size: (size, store.keep(Encoded(bytes(size), "png"))), range(200)))
    for size, name in kept:
        assert found(store, name) == bytes(size)
    assert names(store) == {name for _, name in kept}
    store.close()


def asked(store: ResultStore, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    """What a client gets of the route."""

    async def route(request):
        try:
            return await get_result(request, store)
        except ApiError as error:
            return error_response(error)

    async def ask():
        app = Starlette(routes=[Route("/v1/images/results/{name}", route, methods=["GET", "HEAD"])])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(method, f"/v1/images/results/{path}", headers=headers)

    return asyncio.run(ask())


def test_the_route_gives_the_result(store):
    """A stored result is sent as it was made, is kept by no cache in between, and may be fetched again."""
    name = store.keep(on_disk(b"II*\0"))
    for _ in range(2):
        answer = asked(store, name)
        assert (answer.status_code, answer.content) == (200, b"II*\0")
        assert answer.headers["content-type"] == "image/tiff"
        assert answer.headers["cache-control"] == "private, no-store"
        assert answer.headers["content-disposition"] == 'inline; filename="result.tif"'
        assert answer.headers["x-content-type-options"] == "nosniff"
    head = asked(store, name, "HEAD")
    assert head.headers == answer.headers
    assert not head.content


def test_the_route_gives_parts_of_the_result(store):
    """Who reads a GeoTIFF by ranges gets them, as long as it is the same result."""
    name = store.keep(on_disk(b"II*\0abcdef"))
    part = asked(store, name, Range="bytes=4-6")
    assert (part.status_code, part.content) == (206, b"abc")
    assert part.headers["content-range"] == "bytes 4-6/10"
    rest = {"Range": "bytes=7-", "If-Range": part.headers["etag"]}
    assert asked(store, name, **rest).content == b"def"
    assert asked(store, name, **{**rest, "If-Range": '"other"'}).content == b"II*\0abcdef"
    beyond = asked(store, name, Range="bytes=10-")
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */10")


@pytest.mark.parametrize("name", [f"{TOKEN}.png", "%2e%2e%2fsecret", "%00", "x"])
def test_the_route_says_what_is_gone(store, name):
    """An unknown name is a 404 that says how long results can be fetched."""
    answer = asked(store, name)
    assert answer.status_code == 404
    if "%2f" not in name:
        error = answer.json()["error"]
        assert (error["type"], error["param"]) == ("NotFoundError", "name")
        assert "10 seconds" in error["message"]


def test_the_route_says_what_has_expired(store, clock):
    """An expired result is answered as an unknown one."""
    name = store.keep(Encoded(b"abc", "png"))
    clock.now += 10
    assert asked(store, name).status_code == 404


def test_the_route_blocks_no_loop(store, monkeypatch):
    """The file is looked for, read and closed in other threads."""
    name = store.keep(on_disk(b"abc"))
    threads = set()
    for target, method in ((ResultStore, "find"), (Encoded, "read"), (Encoded, "close")):
        original = getattr(target, method)

        def watched(*arguments, original=original):
            threads.add(threading.get_ident())
            return original(*arguments)

        monkeypatch.setattr(target, method, watched)
    assert asked(store, name).content == b"abc"
    assert threads
    assert threading.get_ident() not in threads
