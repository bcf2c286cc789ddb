"""Fixtures and steps of tests about how scenes of ``LLM`` end; import the fixtures that a module uses."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from processors_for_tests import RELEASE
from scene_ends import Left, is_bad, wait_for
from scenes_for_tests import TILE, classes, pixels, write

from vllm_mmout import OutputParams
from vllm_mmout.engine.scene import scene
from vllm_mmout.errors import DecodeError
from vllm_mmout.geo.raster import sequence
from vllm_mmout.models.inputs import raster_view

DEADLINE = 120
"""Seconds that no step of these tests takes, on whatever machine."""
ECHO = OutputParams(processor="Echo")
GOOD = pixels(8)
TILES = OutputParams(tile=TILE)


@pytest.fixture(name="engine", params=["llm", pytest.param("mp_llm", marks=pytest.mark.slow)])
def an_engine(request, tmp_path):
    """An ``LLM``, in this process and in processes of its own; afterwards it is idle, and the next scene is right."""
    llm = request.getfixturevalue(request.param)
    RELEASE.clear()
    left = Left(tmp_path)
    try:
        yield llm
        RELEASE.set()
        assert_clean(llm, left)
        right = generate(llm, pixels(77), OutputParams(tile=TILE, overlap=6))
        np.testing.assert_array_equal(right.array, classes(pixels(77)))
        right.close()
        assert_clean(llm, left)
    finally:
        RELEASE.set()


def router_of(engine):
    """What routes its outputs."""
    return engine.llm_engine.output_processor


def assert_clean(engine, left):
    """Nothing is left of any request."""
    router = router_of(engine)
    wait_for(lambda: not router.pool._running, "no decoder runs")
    assert left.all(router) == {}
    assert not engine.llm_engine.has_unfinished_requests()


def generate(engine, data, params=TILES):
    """The output of one scene."""
    (result,) = engine.generate(data, params, use_tqdm=False)
    return result.outputs


@pytest.fixture(name="processor")
def a_processor(monkeypatch):
    """Gives a processor of an engine another method: ``processor(engine, name, assemble=...)``."""

    def change(engine, name="segmentation", **methods):
        instance = router_of(engine).binding.processors[name]
        for method, function in methods.items():
            monkeypatch.setattr(instance, method, function.__get__(instance), raising=False)
        return instance

    return change


class UnpluggedError(Exception):
    """An exception of the caller's own."""


def decode_fails(monkeypatch, processor, engine):
    """The bad tile cannot be decoded."""
    decode = processor(engine).decode

    def fails(self, raw, params, state=None):
        if is_bad(raw):
            raise LookupError("no decode today")
        return decode(raw, params, state)

    processor(engine, decode=fails)
    return TILES, DecodeError, "LookupError: no decode today"


def tiled(path, array=GOOD, **options):
    """A GeoTIFF of which each tile of the scene's first rows and columns is one of the file's."""
    return write(path, array, tiled=True, blockxsize=32, blockysize=32, compress="deflate", **options)


@contextmanager
def before_window(number, action, name=""):
    """Do something when so many tiles were read, of files with that in their names; each tile is read by itself."""
    seen = raster_view.RasterView._seen_tiles
    count = []

    def counting(self, array, masks, windows):
        assert len(windows) == 1
        count.append(name in self.raster.name)
        if sum(count) == number and count[-1]:
            action()
        return seen(self, array, masks, windows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raster_view.RasterView, "_seen_tiles", counting)
        patch.setattr(scene, "_MOST_TILES", 1)
        read_nothing_ahead(patch)
        yield


def read_nothing_ahead(patch):
    """A window's pixels come from its file when they are asked for, not before."""
    patch.setattr(sequence, "READ_AHEAD_BYTES", 0)
