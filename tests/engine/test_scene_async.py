"""Scenes through ``AsyncLLM``, whose engine has processes of its own: progress, and results that are right."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import pytest_asyncio
from scenes_for_tests import TILE, classes, pixels, probabilities, write

from vllm_mmout import Mosaic, OutputParams
from vllm_mmout.errors import AbortedError, InputError, MMOutError
from vllm_mmout.outputs.stored import StoredRaster

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels(14)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(make_async_llm):
    """The engine of this module."""
    engine = make_async_llm()
    yield engine
    engine.shutdown()


async def answers(engine, data, **options):
    """All that one call yields."""
    return [answer async for answer in engine.generate(data, OutputParams(**{"tile": TILE, **options}))]


async def test_progress_comes_before_the_result(engine, tmp_path):
    """Reports count up, are not finished and have no output; the last answer is the result, alone finished."""
    path = write(tmp_path / "in.tif", ARRAY, crs="EPSG:32614", transform=rasterio.Affine(30, 0, 5, 0, -30, 7))
    *reports, last = await answers(engine, path, overlap=4, path=str(tmp_path / "out.tif"))
    counts = [report.progress.done for report in reports]
    assert counts == sorted(set(counts))
    assert all(1 <= count <= 12 for count in counts)
    assert {report.progress.total for report in (*reports, last)} == {12}
    assert not any(report.finished for report in reports)
    assert [report.outputs for report in reports] == [None] * len(reports)
    assert len({report.request_id for report in (*reports, last)}) == 1
    assert last.finished
    assert last.progress.done == 12
    with rasterio.open(path) as before, rasterio.open(last.outputs.path) as after:
        np.testing.assert_array_equal(after.read(), classes(ARRAY))
        assert (after.crs, after.transform) == (before.crs, before.transform)


async def test_many_tiles_make_many_reports(engine):
    """Whoever waits hears of a scene of 400 tiles long before its end, tiles that are not sent among them."""
    array = pixels(15, 320, 320)
    array[:, :16] = 0
    reports = await answers(engine, array, tile=16, nodata=0)
    counts = [report.progress.done for report in reports]
    assert len(counts) > 5
    assert counts == sorted(counts)
    assert counts[-1] == reports[-1].progress.total == 400
    valid = np.ones((320, 320), bool)
    valid[:16] = False
    np.testing.assert_array_equal(reports[-1].outputs.array, classes(array, valid))


async def test_a_small_input_has_no_progress(engine):
    """What fits one forward gives one answer."""
    (answer,) = await answers(engine, pixels(14, 20, 20))
    assert answer.finished
    assert answer.progress is None


async def test_scenes_and_single_images_at_once(engine, tmp_path):
    """Eight scenes, eight single images, two that fail, and a scene without an observation, all in one moment."""
    arrays = [pixels(number, *((50, 40 + number) if number % 2 else (24, 9 + number))) for number in range(16)]
    paths = [write(tmp_path / f"{number}.tif", array) for number, array in enumerate(arrays)]
    nothing = np.zeros((6, 40, 40), np.uint16)
    calls = [answers(engine, path, output="probabilities", overlap=6) for path in paths]
    calls += [answers(engine, tmp_path / "no.tif"), answers(engine, ARRAY, processor="tensor")]
    calls += [answers(engine, nothing, nodata=0)]
    *good, missing, refused, empty = await asyncio.gather(*calls, return_exceptions=True)
    for array, (*_, last) in zip(arrays, good, strict=True):
        np.testing.assert_allclose(last.outputs.array, probabilities(array), rtol=0, atol=3e-7)
        assert isinstance(last.outputs, StoredRaster) == (max(array.shape[1:]) > TILE)
    assert "no such file" in str(missing)
    assert "cannot join tiles" in str(refused)
    assert all(isinstance(error, MMOutError) for error in (missing, refused))
    np.testing.assert_array_equal(empty[-1].outputs.array, np.full((1, 40, 40), 255, np.uint8), strict=True)


async def test_a_result_needs_nobody_who_takes_the_progress(engine):
    """Whoever looks away for a while still gets the result."""
    generator = engine.generate(ARRAY, OutputParams(tile=8))
    first = await anext(generator)
    await asyncio.sleep(0.2)
    *_, last = [answer async for answer in generator]
    assert first.progress.total == 120
    assert not first.finished
    np.testing.assert_array_equal(last.outputs.array, classes(ARRAY))


def two_scenes(folder):
    """Files of two scenes side by side, with dates."""
    places = [rasterio.Affine(30, 0, west, 0, -30, 5_000_000) for west in (500_000, 500_000 + 30 * 90)]
    return [
        write(folder / f"{day}_2024-05-0{day}.tif", pixels(day), crs="EPSG:32632", transform=place)
        for day, place in enumerate(places, start=1)
    ]


async def test_a_mosaic_reports_the_tiles_of_all_scenes(engine, tmp_path):
    """The reports of a mosaic count the tiles of all its scenes, and its result is one map of them."""
    *reports, last = await answers(engine, Mosaic(two_scenes(tmp_path)), path=str(tmp_path / "map.tif"))
    counts = [report.progress.done for report in reports]
    assert counts == sorted(counts)
    assert {report.progress.total for report in (*reports, last)} == {18}
    expected = np.concatenate([classes(pixels(1)), classes(pixels(2))], axis=2)
    np.testing.assert_array_equal(last.outputs.array, expected)


@pytest.mark.parametrize("end", ["abort", "close", "failure"])
async def test_a_mosaic_that_ends_early_leaves_nothing(engine, tmp_path, end):
    """After an abort, a closed generator or a failed scene no temporary folder is left, and the engine works."""
    folder = tmp_path / "out"
    folder.mkdir()
    scenes = two_scenes(tmp_path)
    if end == "failure":
        scenes[1].write_bytes(scenes[1].read_bytes()[:-3000])
    options = OutputParams(tile=8, path=str(folder / "map.tif"))
    generator = engine.generate(Mosaic(scenes), options, f"mosaic-{end}")
    if end == "failure":
        with pytest.raises(InputError, match=r"2_2024-05-02\.tif"):
            await answers(engine, Mosaic(scenes), path=str(folder / "map.tif"))
    else:
        await anext(generator)
        assert len(list(folder.iterdir())) == 1
        if end == "abort":
            await engine.abort(f"mosaic-{end}")
            with pytest.raises(AbortedError):
                [answer async for answer in generator]
    await generator.aclose()
    assert not list(folder.iterdir())
    assert not engine.mmout.mosaics
    (*_, last) = await answers(engine, ARRAY)
    np.testing.assert_array_equal(last.outputs.array, classes(ARRAY))


@pytest.mark.timing
@pytest.mark.parametrize(
    "mode", ["abort", pytest.param("wait", marks=pytest.mark.slow), pytest.param("keep", marks=pytest.mark.slow)]
)
async def test_a_scene_goes_on_behind_a_pause(engine, mode, monkeypatch):
    """Whatever becomes of the tiles that the engine has by then: kept, done before, or dropped and sent again."""
    monkeypatch.setattr("vllm_mmout.engine.scene.pace.BLOCK_S", 0)  # each tile is a block, so many are left by then
    array = pixels(17, 160, 200)
    generator = engine.generate(array, OutputParams(tile=8))
    await anext(generator)
    await engine.pause_generation(mode="keep" if mode == "abort" else mode)  # so that there is something to drop
    await asyncio.sleep(0.2)
    if mode == "abort":
        had = list(engine.output_processor.request_states)
        assert had
        await engine.pause_generation(mode=mode)
        await asyncio.sleep(0.2)
        assert not set(had) & set(engine.output_processor.request_states)
    await engine.resume_generation()
    *_, last = [answer async for answer in generator]
    np.testing.assert_array_equal(last.outputs.array, classes(array))


async def test_a_paused_engine_is_waited_for(engine, monkeypatch):
    """Tiles that the engine sends back unrun, as vLLM's does from 0.33 on while it is paused, are sent again."""
    import vllm.exceptions

    class PausedError(Exception):
        """Stands for vLLM's own where the installed release has none."""

    kind = getattr(vllm.exceptions, "RetryableRequestError", PausedError)
    monkeypatch.setattr(vllm.exceptions, "RetryableRequestError", kind, raising=False)
    monkeypatch.setattr("vllm_mmout.engine.scene.async_runs.ASKED_AGAIN_S", 0.01)
    monkeypatch.setattr("vllm_mmout.engine.scene.pace.BLOCK_S", 0)  # each tile is a block
    send, sent = engine._mmout_send, []

    async def paused(request):
        sent.append(request.part)
        if len(sent) in range(3, 9):
            raise kind("Generation is paused. Please retry after it resumes.")
        return await send(request)

    monkeypatch.setattr(engine, "_mmout_send", paused)
    array = pixels(16, 40, 56)
    last = (await answers(engine, array))[-1]
    np.testing.assert_array_equal(last.outputs.array, classes(array))
    assert len(sent) == last.progress.total + 6
    monkeypatch.setattr("vllm_mmout.engine.scene.async_runs.PAUSED_S", 0)
    sent.clear()
    with pytest.raises(kind, match="paused"):
        await answers(engine, array)


@pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning")
async def test_a_mosaic_takes_a_scene_without_valid_pixels(engine, tmp_path):
    """A scene of one forward without a valid pixel is named in `assumed`, and the map has no data there."""
    first, second = two_scenes(tmp_path)
    with rasterio.open(first, "r+") as file:
        file.write(np.zeros_like(file.read()))
        file.nodata = 0
    *_, last = await answers(engine, Mosaic([first, second]), tile=None)
    assert [text for text in last.assumed if f"{first.name} adds nothing" in text]
    expected = np.concatenate([np.full((1, 75, 90), 255, np.uint8), classes(pixels(2))], axis=2)
    np.testing.assert_array_equal(last.outputs.array, expected)
