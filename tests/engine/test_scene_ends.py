"""Scenes of ``LLM`` that fail: the error says what happened, nothing is left, the next one works."""

from __future__ import annotations

import resource
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scene_ends
from processors_for_tests import RELEASE, Echo
from scene_ends import BAD_TILE, bad_tile, settings, wait_for
from scene_steps import (  # noqa: F401 - fixtures
    ECHO,
    GOOD,
    TILES,
    a_processor,
    an_engine,
    decode_fails,
    generate,
    router_of,
)
from scenes_for_tests import TILE, classes, pixels
from water_oracle import echo, scene

from scripts import answer_of
from vllm_mmout import OutputParams
from vllm_mmout.engine.scene import schedule
from vllm_mmout.errors import DecodeError, ForwardError, ReduceError, SaveError
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.models.embedded.water_index import WaterIndex

pytest.importorskip("rasterio", reason="it writes the scenes")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


def reduce_fails(monkeypatch, processor, engine):
    """It cannot be reduced, in the worker."""
    monkeypatch.setattr(Echo, "assemble", scene_ends.indices)
    params = OutputParams(tile=TILE, processor="ReduceRaisesForBright")
    return params, ReduceError, "ReduceRaisesForBright.reduce failed in the worker: ValueError: too bright"


def forward_fails(monkeypatch, processor, engine):
    """The model fails at it, in the worker."""
    if not hasattr(engine.llm_engine.engine_core, "engine_core"):
        pytest.skip("the model runs in another process")
    forward = WaterIndex.forward

    def fails(self, pixel_values):
        if (pixel_values[:, 1].float() >= 9000).any():
            raise ArithmeticError("no forward today")
        return forward(self, pixel_values)

    monkeypatch.setattr(WaterIndex, "forward", fails)
    return TILES, ForwardError, "ArithmeticError: no forward today"


@pytest.mark.parametrize("fails", [decode_fails, reduce_fails, forward_fails])
def test_one_tile_that_fails(engine, processor, monkeypatch, tmp_path, fails):
    """Its scene fails and says which tile it was and where; other scenes and inputs of the call are not touched."""
    params, kind, message = fails(monkeypatch, processor, engine)
    inputs = [GOOD, scene(1), bad_tile(), scene(2), pixels(9)]
    bad = OutputParams(tile=TILE, processor=params.processor, path=str(tmp_path / "out.tif"))
    results = engine.generate(inputs, [TILES, ECHO, bad, ECHO, TILES], use_tqdm=False)
    error = results[2].error
    assert type(error) is kind
    assert str(error).startswith(f"{BAD_TILE}: ")
    assert message in str(error)
    with pytest.raises(kind):
        _ = results[2].outputs
    assert (results[2].progress.total, results[2].finished) == (9, True)
    assert list(tmp_path.iterdir()) == []
    for place, array in ((0, GOOD), (4, pixels(9))):
        np.testing.assert_array_equal(results[place].outputs.array, classes(array))
    if params is TILES:  # else what Echo says is another thing than it used to be
        assert [results[place].outputs for place in (1, 3)] == [echo(scene(1)), echo(scene(2))]
    with pytest.raises(kind):  # alone it is raised
        engine.generate(bad_tile(), bad, use_tqdm=False)


def test_tiles_that_are_decoded_after_their_scene_failed(engine, processor, monkeypatch):
    """They come back before they can be aborted, and are thrown away."""
    params, kind, _ = decode_fails(monkeypatch, processor, engine)
    abort = engine.llm_engine.abort_request
    decode = processor(engine).decode

    def slow(self, raw, params, state=None):
        output = decode(raw, params, state)  # the bad tile is the first to be answered, others are begun
        time.sleep(0.1)
        return output

    processor(engine, decode=slow)

    def late(*args, **kwargs):
        wait_for(lambda: not router_of(engine).pending, "all are decoded")
        abort(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.llm_engine, "abort_request", late)
        (result,) = engine.generate([bad_tile()], params, use_tqdm=False)
    assert isinstance(result.error, kind)
    assert not engine.llm_engine.has_unfinished_requests()


MISBEHAVIOURS = {
    "raises": (scene_ends.raises, r"failed to join tiles: LookupError: no assemble today"),
    "exits": (scene_ends.exits, r"failed to join tiles: SystemExit: 3"),
    "interrupts": (scene_ends.interrupts, r"failed to join tiles: KeyboardInterrupt"),
    "returns None": (scene_ends.returns_none, r"\(segmentation\) returned None"),
}


@pytest.mark.parametrize(("assemble", "message"), MISBEHAVIOURS.values(), ids=MISBEHAVIOURS)
def test_a_processor_that_cannot_join(engine, processor, tmp_path, assemble, message):
    """Its scene fails, whatever it did; the inputs beside it are right."""
    with pytest.MonkeyPatch.context() as patch:
        instance = processor(engine)
        patch.setattr(instance, "assemble", assemble.__get__(instance), raising=False)
        params = OutputParams(tile=TILE, path=str(tmp_path / "out.tif"))
        results = engine.generate([GOOD, scene(3)], [params, ECHO], use_tqdm=False)
    assert isinstance(results[0].error, DecodeError)
    with pytest.raises(DecodeError, match=message):
        _ = results[0].outputs
    assert results[1].outputs == echo(scene(3))
    assert list(tmp_path.iterdir()) == []


def test_a_processor_that_hangs_while_it_joins(engine, processor, tmp_path):
    """Its scene fails after the limit; the input beside it has its result."""
    with pytest.MonkeyPatch.context() as patch, settings(router_of(engine), decode_timeout_s=1.0):
        instance = processor(engine)
        patch.setattr(instance, "assemble", scene_ends.hangs.__get__(instance), raising=False)
        patch.setattr(schedule, "_TICK_S", 0.1)
        params = OutputParams(tile=TILE, path=str(tmp_path / "out.tif"))
        failed, good = engine.generate([GOOD, scene(3)], [params, ECHO], use_tqdm=False)
    with pytest.raises(DecodeError, match=r"assemble of segmentation worked on one part .* limit of 1 s"):
        _ = failed.outputs
    assert good.outputs == echo(scene(3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("places", [1, 2])
def test_all_scenes_hang_with_few_tiles_in_flight(engine, places):
    """Nothing can come behind a part that is hung upon; the scenes end all the same."""
    processors = router_of(engine).binding.processors
    instance = processors["segmentation"]
    with (
        pytest.MonkeyPatch.context() as patch,
        settings(router_of(engine), max_tiles=places, decode_timeout_s=0.2),
    ):
        patch.setattr(instance, "assemble", scene_ends.hangs.__get__(instance), raising=False)
        patch.setattr(schedule, "_TICK_S", 0.1)
        results = engine.generate([GOOD, GOOD], TILES, use_tqdm=False)
        RELEASE.set()
    assert ["worked on one part" in str(result.error) for result in results] == [True, True]


@pytest.mark.parametrize("assemble", [scene_ends.swallows, scene_ends.swallows_everything])
def test_a_processor_that_swallows_what_ends_it(engine, processor, assemble):
    """A failed tile ends its scene though the processor would go on."""
    decode_fails(None, processor, engine)
    with pytest.MonkeyPatch.context() as patch:
        instance = processor(engine)
        patch.setattr(instance, "assemble", assemble.__get__(instance), raising=False)
        (result,) = engine.generate([bad_tile()], TILES, use_tqdm=False)
    assert str(result.error).startswith(f"{BAD_TILE}: ")


def test_a_processor_that_wants_no_more(engine, processor):
    """What it returned early is the result; all tiles count as done."""
    with pytest.MonkeyPatch.context() as patch:
        instance = processor(engine)
        patch.setattr(instance, "assemble", lambda parts, params: next(parts).window, raising=False)
        (result,) = engine.generate(GOOD, TILES, use_tqdm=False)
    assert isinstance(result.outputs, Window)
    assert (result.progress.done, result.progress.total) == (9, 9)


def test_a_result_that_cannot_be_saved(engine, processor, tmp_path):
    """It is known at the end alone, and leaves nothing."""
    with pytest.MonkeyPatch.context() as patch:
        instance = processor(engine)
        patch.setattr(instance, "assemble", scene_ends.gives_no_raster.__get__(instance), raising=False)
        with pytest.raises(SaveError, match="int cannot be saved"):
            generate(engine, GOOD, OutputParams(tile=TILE, path=str(tmp_path / "out.tif")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", ["joining", "saving"])
def test_of_several_picks_all_are_written_or_none(engine, processor, monkeypatch, tmp_path, fails):
    """The second fails at its end, when the first has long been joined: no file of the first either."""
    monkeypatch.setattr(Echo, "assemble", scene_ends.indices if fails == "saving" else slow_failure)
    params = OutputParams(tile=TILE, processor=("segmentation", "Echo"), path=str(tmp_path / "out.tif"))
    with pytest.raises(SaveError if fails == "saving" else DecodeError):
        engine.generate(GOOD, params, use_tqdm=False)
    assert list(tmp_path.iterdir()) == []


def slow_failure(self, parts, params):
    """Fail when the others are long done."""
    list(parts)
    time.sleep(0.3)
    raise LookupError("no assemble today")


def test_a_folder_that_is_removed(engine, processor, tmp_path):
    """The result has no place to go: the error names the folder."""
    folder = tmp_path / "out"
    folder.mkdir()
    decode = processor(engine).decode

    def removes(self, raw, params, state=None):
        shutil.rmtree(folder, ignore_errors=True)
        return decode(raw, params, state)

    processor(engine, decode=removes)
    with pytest.raises(SaveError, match=str(folder)):
        generate(engine, GOOD, OutputParams(tile=TILE, path=str(folder / "out.tif")))
    assert not folder.exists()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What came of scenes whose engine was killed, in an interpreter of its own."""
    folder = tmp_path_factory.mktemp("killed")
    return answer_of(Path(scene_ends.__file__).with_name("killed_engine.py"), str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_engine_that_is_killed(killed, kind):
    """Every scene ends with vLLM's own error, those of later calls too; no file appears, and nothing is left."""
    assert {name for name, _ in killed[kind]["errors"]} == {"vllm.v1.engine.exceptions.EngineDeadError"}
    assert len(killed[kind]["errors"]) == {"sync": 2, "async": 3}[kind]
    assert killed[kind]["left"] == {"destination": []}
    assert killed[kind].get("budget", [0, 0, 0, 4]) == [0, 0, 0, 4]


@contextmanager
def disk_of(nbytes):
    """No file may grow beyond a size; writing more fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("full", ["while tiles come", "at the last pass"])
@pytest.mark.parametrize("with_path", [True, False])
def test_a_full_disk(engine, tmp_path, full, with_path):
    """The error says so; an older file at the destination is as it was."""
    target = tmp_path / "out.tif"
    params = OutputParams(tile=TILE, output="probabilities", path=str(target) if with_path else None)
    whole = len(generate(engine, GOOD, params).to_bytes("tif"))
    target.write_bytes(b"older")
    with disk_of(whole // 2 if full == "while tiles come" else whole - 1), pytest.raises(SaveError, match="too large"):
        generate(engine, GOOD, params)
    assert target.read_bytes() == b"older"
    assert [file.name for file in tmp_path.iterdir()] == ["out.tif"]
