"""Ctrl-C and progress bars that raise, at any moment of a call with scenes: nothing is left, the next one works."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest
from interrupting import interrupted_after
from scene_ends import Left, settings
from scene_steps import (  # noqa: F401 - fixtures
    DEADLINE,
    ECHO,
    GOOD,
    TILES,
    UnpluggedError,
    a_processor,
    an_engine,
    assert_clean,
    decode_fails,
    router_of,
    tiled,
)
from scenes_for_tests import TILE, classes, pixels
from tqdm.auto import tqdm
from water_oracle import scene

from vllm_mmout import OutputParams
from vllm_mmout.outputs.formats.geotiff import remove_saved

pytest.importorskip("rasterio", reason="it writes the scenes")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]


def bar(error, place, method="update"):
    """A progress bar that raises in the n-th call of one method."""
    calls = []

    class Bar(tqdm):
        def count(self, name):
            if name == method:
                calls.append(name)
                if len(calls) == place:
                    raise error

        def update(self, n=1):
            self.count("update")
            return super().update(n)

        def set_description_str(self, *args, **kwargs):
            self.count("set_description_str")
            super().set_description_str(*args, **kwargs)

        def set_postfix_str(self, *args, **kwargs):
            self.count("set_postfix_str")
            super().set_postfix_str(*args, **kwargs)

    return Bar


@pytest.mark.parametrize("error", [KeyboardInterrupt, UnpluggedError])
@pytest.mark.parametrize(
    ("method", "place"), [("set_description_str", 1), ("set_postfix_str", 1), ("update", 2), ("update", 3)]
)
def test_a_progress_bar_that_raises(engine, tmp_path, error, method, place):
    """It reaches the caller as it is; scenes that run, that wait, and that were opened are all let go."""
    paths = [tiled(tmp_path / f"{number}.tif") for number in range(6)]
    with settings(router_of(engine), max_scenes=2, max_tiles=3), pytest.raises(error):
        engine.generate([*paths, scene(1)], [*[TILES] * 6, ECHO], use_tqdm=bar(error, place, method))


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_signals_at_any_moment(engine, tmp_path):
    """Ctrl-C at thirty moments of a call of scenes and single inputs."""
    inputs = [tiled(tmp_path / "in.tif"), scene(1), pixels(5), io.BytesIO((tmp_path / "in.tif").read_bytes()), scene(2)]
    folder = tmp_path / "out"
    folder.mkdir()
    params = [OutputParams(tile=TILE, overlap=4, path=str(folder / "a.tif")), ECHO, TILES, TILES, ECHO]
    left = Left(tmp_path, folder)

    def call():
        inputs[3].seek(0)
        with settings(router_of(engine), max_scenes=2, max_tiles=4):
            return engine.generate(inputs, params, use_tqdm=False)

    started = time.monotonic()
    call()
    moments, whole, hits = np.random.default_rng(0), time.monotonic() - started, 0
    deadline = time.monotonic() + DEADLINE
    while hits < 30:
        assert time.monotonic() < deadline, f"{hits} interrupts came in time"
        remove_saved(folder / "a.tif")
        started = time.monotonic()
        if interrupted_after(moments.uniform(0, whole), call):
            hits += 1
        else:
            whole = min(whole, time.monotonic() - started)
        assert_clean(engine, left)
        assert sorted(file.name for file in folder.iterdir()) in ([], ["a.qml", "a.tif", "a.tif.aux.xml"])
    results = call()
    np.testing.assert_array_equal(results[0].outputs.array, classes(GOOD))
    results[0].outputs.close()
