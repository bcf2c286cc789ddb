"""Pictures of a scene while it grows, through ``AsyncLLM``, and the most tiles that a request may have."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing
from itertools import pairwise

import numpy as np
import pytest
import pytest_asyncio
from processors_for_tests import RELEASE
from scene_ends import DEADLINE, Left, bad_tile, is_bad
from scenes_for_tests import classes, pixels, write
from vllm.exceptions import VLLMValidationError
from water_oracle import leftovers

from vllm_mmout import ImageOutput, OutputParams
from vllm_mmout.engine.scene import pace
from vllm_mmout.engine.scene import scene as scenes
from vllm_mmout.errors import AbortedError, DecodeError, InputError
from vllm_mmout.outputs.partial_images import PartialImage, PreviewRequest

pytest.importorskip("rasterio", reason="it writes the scenes")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
GROWS = pixels(21, 160, 176)
"""110 tiles of 16."""
DUE = [28, 55, 83]
"""When three pictures of it are due."""
DEFAULT = {"tile": 16, "partial_images": 3}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_engine(make_async_llm):
    """The engine of this module."""
    engine = make_async_llm(decode_timeout_s=DEADLINE)
    yield engine
    engine.shutdown()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(module_engine, tmp_path):
    """The engine; afterwards nothing of any scene is left."""
    RELEASE.clear()
    left = Left(tmp_path)
    yield module_engine
    RELEASE.set()
    await until(lambda: not leftovers(module_engine.output_processor))
    assert left.all(module_engine.output_processor) == {}
    assert module_engine.mmout.driven == {}
    assert (module_engine.mmout.budget.used_count, module_engine.mmout.budget.used_bytes) == (0, 0)


async def answers(engine, data=GROWS, request_id=None, **options):
    """All that one call yields."""
    return [answer async for answer in engine.generate(data, OutputParams(**{**DEFAULT, **options}), request_id)]


def pictures(reports):
    """The reports that come with a picture, which have an index, and no other report has one."""
    assert [report.outputs is not None for report in reports] == [
        report.progress.partial_index is not None for report in reports
    ]
    found = [report for report in reports if report.outputs is not None]
    assert [report.progress.partial_index for report in found] == list(range(len(found)))
    return found


def check(found, whole):
    """What is seen grows, and is as in the picture of the result."""
    whole = np.asarray(whole.convert("RGBA"))
    seen = []
    for report in found:
        assert isinstance(report.outputs, ImageOutput)
        assert not report.finished
        picture = np.asarray(report.outputs.image)
        assert (report.outputs.mode, picture.shape) == ("RGBA", whole.shape)
        seen.append(picture[..., 3] == 255)
        assert not picture[~seen[-1]].any()
        np.testing.assert_array_equal(picture[seen[-1]], whole[seen[-1]])
    for before, after in pairwise(seen):
        assert not (before & ~after).any()
        assert before.sum() < after.sum()
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"overlap": 6}, marks=pytest.mark.slow),
        {"output": "areas"},
        {"output": "polygons", "overlap": 2},
    ],
)
async def test_three_pictures_of_a_growing_scene(engine, options, tmp_path):
    """They come before the result, the first before half of the tiles are done, and show what stays."""
    array = GROWS.copy()
    array[:, 70:90, 20:150] = 0
    path = write(tmp_path / "in.tif", array, nodata=0, tiled=True, blockxsize=16, blockysize=16)
    *reports, last = await answers(engine, path, **options)
    found = pictures(reports)
    total = last.progress.total
    assert [report.progress.done for report in found] == [-(-number * total // 4) for number in (1, 2, 3)]
    assert found[0].progress.done < total / 2
    counts = [report.progress.done for report in reports]
    assert counts == sorted(set(counts))
    plain = (await answers(engine, path, partial_images=0, **{**options, "output": None}))[-1].outputs
    seen = check(found, plain.image)
    assert 0.1 < seen[0].mean() < 0.3
    assert (last.finished, last.progress.partial_index) == (True, None)
    if not options.get("output"):
        np.testing.assert_array_equal(last.outputs.array, classes(array, array[0] != 0))
    plain.close()
    if hasattr(last.outputs, "close"):  # a table has nothing to close
        last.outputs.close()


@pytest.mark.parametrize("wanted", [1, 2])
async def test_as_many_pictures_as_were_asked_for(engine, wanted):
    """Not three."""
    *reports, last = await answers(engine, partial_images=wanted)
    found = pictures(reports)
    assert [report.progress.done for report in found] == [-(-k * 110 // (wanted + 1)) for k in range(1, wanted + 1)]
    check(found, last.outputs.image)
    last.outputs.close()


async def test_without_pictures_nothing_makes_any(engine, monkeypatch):
    """Reports have no output then, and nothing looks at the tiles."""
    monkeypatch.setattr(scenes, "PartialImages", None)
    *reports, last = await answers(engine, partial_images=0)
    assert reports
    assert pictures(reports) == []
    last.outputs.close()


async def test_probabilities_are_shown_in_grey(engine):
    """Of the first class, over the range so far: the same pixels are seen, though not in the same grey."""
    *reports, last = await answers(engine, output="probabilities", overlap=4)
    for report in (found := pictures(reports)):
        picture = np.asarray(report.outputs.image)
        seen = picture[..., 3] == 255
        assert {int(picture[seen][:, band].min()) for band in range(3)} == {0}
        assert {int(picture[seen][:, band].max()) for band in range(3)} == {255}
        values = last.outputs.array[0][seen]
        grey = picture[seen][:, 0]
        assert np.corrcoef(values, grey)[0, 1] > 0.9999
    assert len(found) == 3
    last.outputs.close()


async def test_what_fits_one_forward_has_no_picture(engine):
    """There is one answer."""
    (answer,) = await answers(engine, pixels(1, 20, 20), tile=None)
    np.testing.assert_array_equal(answer.outputs.array, classes(pixels(1, 20, 20)))


async def test_requests_with_pictures_share_batches(engine, monkeypatch):
    """What travels says nothing of pictures: tiles and single inputs are reduced together with others."""
    travelled = []
    send = type(engine).add_request

    async def add_request(self, request_id, prompt, params, *args, **kwargs):
        travelled.append(params.extra_kwargs["mmout"])
        return await send(self, request_id, prompt, params, *args, **kwargs)

    monkeypatch.setattr(type(engine), "add_request", add_request)
    (await answers(engine, pixels(1, 40, 40), tile=32))[-1].outputs.close()
    await answers(engine, pixels(1, 20, 20), tile=None)
    assert len(travelled) >= 2
    assert not any("partial_images" in options for options in travelled)


class Waits:
    """Changes a processor's ``assemble`` so that it goes on to a tile when it is told to."""

    def __init__(self, engine, monkeypatch):
        self.steps = threading.Semaphore(0)
        processor = engine.output_processor.binding.processors["segmentation"]
        assemble = type(processor).assemble
        steps = self.steps

        def stepped(parts, params):
            every = parts._parts

            def one_by_one():
                for part in every:
                    assert steps.acquire(timeout=DEADLINE)
                    yield part

            parts._parts = one_by_one()
            return assemble(processor, parts, params)

        monkeypatch.setattr(processor, "assemble", stepped, raising=False)

    def go(self, tiles):
        """Let it join so many more tiles."""
        if tiles:  # a semaphore takes no 0
            self.steps.release(tiles)


async def until(condition):
    """Wait for a condition."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.002)


async def test_who_looks_away_gets_the_newest_picture(engine, monkeypatch):
    """What became due meanwhile but for the last is left out, the index counts on, and the result comes last."""
    waits = Waits(engine, monkeypatch)
    waits.go(DUE[0] + 1)
    async with aclosing(engine.generate(GROWS, OutputParams(**DEFAULT))) as stream:
        before = []
        while not before or before[-1].outputs is None:
            before.append(await anext(stream))
        (run,) = engine.mmout.driven
        waits.go(200)
        await until(lambda: run.finished)
        after = [answer async for answer in stream]
    found = pictures([*before, *after[:-1]])
    assert [report.progress.done for report in found] == [DUE[0], DUE[2]]
    assert after[-1].finished
    assert after[0] is found[1]
    check(found, after[-1].outputs.image)
    after[-1].outputs.close()


async def test_pictures_that_somebody_asks_for(engine, monkeypatch):
    """Each comes with the tile after it was asked for, once, beside those of given moments, and the index counts on."""
    waits, watch = Waits(engine, monkeypatch), PreviewRequest()
    moments = sorted(np.random.default_rng().choice(np.arange(1, 110), 6, replace=False).tolist())
    reports = []

    async def consume():
        async for report in engine.generate(GROWS, OutputParams(tile=16, partial_images=1), watch=watch):
            reports.append(report)

    task = asyncio.create_task(consume())
    joined = 0
    for moment in moments:
        waits.go(moment - joined)
        await until(lambda done=moment: reports and reports[-1].progress.done == done)
        threads = [threading.Thread(target=watch.ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        joined = moment + 1
        waits.go(1)
        await until(lambda done=joined: reports[-1].progress.done == done)
    waits.go(110 - joined)
    await task
    *reports, last = reports
    found = pictures(reports)
    assert [report.progress.done for report in found] == sorted({55, *(moment + 1 for moment in moments)}), moments
    check(found, last.outputs.image)
    watch.ask()  # too late: there is nobody who hears it
    last.outputs.close()


async def test_pictures_asked_for_at_any_moment(engine):
    """While the scene runs as fast as it can: never more than were asked for, and what is seen stays."""
    watch, ended, asked = PreviewRequest(), threading.Event(), []

    def ask():
        random = np.random.default_rng()
        while not ended.wait(random.uniform(0, 0.02)):
            asked.append(None)
            watch.ask()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        *reports, last = [answer async for answer in engine.generate(GROWS, OutputParams(tile=16), watch=watch)]
    finally:
        ended.set()
        asking.join()
    found = pictures(reports)
    assert 0 < len(found) <= len(asked)
    check(found, last.outputs.image)
    last.outputs.close()


async def test_a_watch_that_nobody_asks(engine):
    """Nothing is yielded but progress; what fits one forward has no picture though one is asked for."""
    *reports, last = [answer async for answer in engine.generate(GROWS, OutputParams(tile=16), watch=PreviewRequest())]
    assert reports
    assert pictures(reports) == []
    last.outputs.close()
    watch = PreviewRequest()
    watch.ask()
    (answer,) = [answer async for answer in engine.generate(pixels(1, 20, 20), watch=watch)]
    assert answer.finished


async def test_pictures_that_are_due_together_all_come_to_who_waits(engine, monkeypatch):
    """The time that one of them takes costs no other."""
    waits, made, go = Waits(engine, monkeypatch), threading.Event(), threading.Event()
    image = PartialImage.image

    def slow(self):
        made.set()
        assert go.wait(DEADLINE)
        return image(self)

    monkeypatch.setattr(PartialImage, "image", slow)
    waits.go(DUE[0])
    task = asyncio.create_task(answers(engine))
    await until(made.is_set)
    (run,) = engine.mmout.driven
    waits.go(200)
    await until(lambda: run.finished)
    go.set()
    *reports, last = await task
    assert [report.progress.done for report in pictures(reports)] == DUE
    last.outputs.close()


ENDS = ["aborted", "closed", "cancelled"]


@pytest.mark.parametrize("how", ENDS)
async def test_a_scene_that_is_given_up_after_its_first_picture(engine, how, monkeypatch):
    """Nothing of it is left, the picture is its owner's."""
    waits = Waits(engine, monkeypatch)
    waits.go(DUE[0] + 1)
    stream = engine.generate(GROWS, OutputParams(**DEFAULT), "mine")
    report = await anext(stream)
    while report.outputs is None:
        report = await anext(stream)
    (run,) = engine.mmout.driven
    if how == "aborted":
        waits.go(200)
        await engine.abort("mine")
        with pytest.raises(AbortedError):
            assert not [later async for later in stream if later.outputs is not None]
    elif how == "closed":
        waits.go(200)
        await stream.aclose()
    else:
        assert (await anext(stream)).progress.done == DUE[0] + 1  # and no further report can come now
        task = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.01)
        task.cancel()
        waits.go(200)
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: not engine.mmout.driven)
    assert run.growing.take() is None
    assert run.growing._picture is None
    assert report.outputs.width == 176


async def test_a_scene_that_is_given_up_while_a_picture_is_made(engine, monkeypatch):
    """The thread that makes it ends by itself, nobody waits for it."""
    made, go, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(self):
        made.set()
        assert go.wait(DEADLINE)
        ended.set()

    monkeypatch.setattr(PartialImage, "image", slow)
    task = asyncio.create_task(answers(engine))
    await until(made.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.mmout.driven == {}
    go.set()
    await until(ended.is_set)


async def test_a_scene_that_fails_shows_no_further_picture(engine, monkeypatch):
    """Though one is due: its error comes next."""
    processor = engine.output_processor.binding.processors["segmentation"]
    decode, made = processor.decode, threading.Event()

    def fails(raw, params, state=None):
        if is_bad(raw):
            assert made.wait(DEADLINE)
            raise LookupError("no decode today")
        return decode(raw, params, state)

    def shown(self):
        made.set()
        (run,) = engine.mmout.driven
        while run.error is None:
            time.sleep(0.002)
        return ImageOutput(np.zeros((1, 1), np.uint8))

    monkeypatch.setattr(pace, "BLOCK_S", 0)  # the tiles before the bad tile are not in its block
    monkeypatch.setattr(processor, "decode", fails, raising=False)
    monkeypatch.setattr(PartialImage, "image", shown)
    reports = []

    async def consume():
        async for report in engine.generate(bad_tile(), OutputParams(tile=32, partial_images=2)):
            reports.append(report)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(DecodeError, match="no decode today"):
        await consume()
    assert pictures(reports) == []
    assert made.is_set()


async def test_of_several_processors_the_first_is_shown(engine, monkeypatch):
    """Whatever the others join; one that joins no raster shows nothing."""
    joined = engine.output_processor.binding.processors["Echo"]
    monkeypatch.setattr(
        type(joined),
        "assemble",
        lambda self, parts, params: sum(1 for _ in parts),
    )
    *reports, last = await answers(engine, processor=("segmentation", "Echo"))
    found = pictures(reports)
    assert len(found) == 3
    check(found, last.outputs["segmentation"].image)
    last.outputs["segmentation"].close()
    *reports, last = await answers(engine, processor=("Echo", "segmentation"))
    assert pictures(reports) == []
    last.outputs["segmentation"].close()


async def test_a_scene_of_more_tiles_than_a_request_may_have(engine, tmp_path, monkeypatch):
    """It is refused with both numbers before anything is sent, and its file is closed."""
    monkeypatch.setattr(type(engine), "_mmout_run", None)
    path = write(tmp_path / "in.tif", GROWS)
    left = Left(tmp_path)
    with pytest.raises(InputError, match=r"110 tiles of 16 .* may have 109; choose a larger tile, or cut") as raised:
        await anext(engine.generate(path, OutputParams(tile=16), max_tiles=109))
    assert raised.value.param == "tile"
    assert isinstance(raised.value, VLLMValidationError)
    assert left.open_files() == left.open_before
    with pytest.raises(InputError, match="or a smaller overlap"):
        await anext(engine.generate(path, OutputParams(tile=16, overlap=1), max_tiles=110))


async def test_a_scene_of_as_many_tiles_as_it_may_have(engine):
    """It runs, and so does what fits one forward, whatever the limit."""
    *_, last = [answer async for answer in engine.generate(GROWS, OutputParams(tile=16), max_tiles=110)]
    np.testing.assert_array_equal(last.outputs.array, classes(GROWS))
    last.outputs.close()
    (answer,) = [answer async for answer in engine.generate(pixels(1, 20, 20), max_tiles=0)]
    assert answer.finished
