"""Answers with addresses: of a request that fails or whose client goes away while it stores, nothing is stored."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="answers are of requests of vLLM's engine")

from vllm_mmout.errors import OptionError
from vllm_mmout.serving.image_service import answer
from vllm_mmout.serving.request.fields import ImageRequest
from vllm_mmout.serving.response.result_files import Encoded, own_folder
from vllm_mmout.serving.response.store import ResultStore

pytestmark = pytest.mark.engine


@pytest.fixture
def store(tmp_path):
    """Takes 1000 bytes."""
    made = ResultStore(tmp_path / "results", 3600, 1000)
    yield made
    made.close()


def on_disk(folder: Path, size: int) -> Encoded:
    path = own_folder(folder) / "result"
    path.write_bytes(bytes(size))
    return Encoded(path, "tiff")


def answering(store, entries):
    """The answer to a request with these results, all of which are to be stored."""

    async def last():
        return SimpleNamespace(progress=None, assumed=(), outputs=None)

    async def encoded(_):
        return entries

    request = ImageRequest(response_format="url")
    labels = [{"processor": f"processor {number}"} for number in range(len(entries))]
    work = SimpleNamespace(
        last=last,
        encoded=encoded,
        request=request,
        params=request.options,
        service=SimpleNamespace(store=store),
        labels=lambda _: labels,
    )
    http = SimpleNamespace(url_for=lambda route, name: f"http://host/{name}")
    return answer(work, http)


def stored(store):
    return [path.name for path in store.folder.glob("*.tif")]


async def body_of(made):
    return b"".join([chunk async for chunk in made.answer.body_iterator])


def test_all_are_stored(store, tmp_path):
    """Each has an address of its own."""
    made = asyncio.run(answering(store, [on_disk(tmp_path, 10), on_disk(tmp_path, 20)]))
    assert len(stored(store)) == 2
    body = asyncio.run(body_of(made))
    assert all(f"http://host/{name}".encode() in body for name in stored(store))


def test_of_several_one_that_cannot_be_stored_leaves_none(store, tmp_path):
    """The first is removed, and the last closed, if the second is too large."""
    entries = [on_disk(tmp_path, size) for size in (10, 2000, 30)]
    with pytest.raises(OptionError, match="--mmout-max-results"):
        asyncio.run(answering(store, entries))
    assert stored(store) == []
    assert not list(tmp_path.glob("mmout-result-*"))


def test_a_client_that_goes_away_while_its_results_are_stored(store, tmp_path, monkeypatch):
    """The thread goes on, and what it stores is removed."""
    begun, may_go_on = threading.Event(), threading.Event()
    keep = store.keep
    kept = []

    def slow(entry):
        begun.set()
        assert may_go_on.wait(60)
        kept.append(keep(entry))
        return kept[-1]

    monkeypatch.setattr(store, "keep", slow)

    async def main():
        task = asyncio.ensure_future(answering(store, [on_disk(tmp_path, 10), on_disk(tmp_path, 20)]))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        async with asyncio.timeout(20):
            while len(kept) < 2 or stored(store):  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert len(kept) == 2
