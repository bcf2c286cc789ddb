"""Blocks of tiles: one engine request carries many, a tile that fails is named, and other inputs are not touched."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from processors_for_tests import StepSize
from scenes_for_tests import TILE, classes, pixels

from vllm_mmout import OutputParams
from vllm_mmout.engine.scene import pace
from vllm_mmout.models.inputs.mapper import RasterMapper

pytestmark = pytest.mark.engine

ACROSS, DOWN = 8, 5
SCENE = pixels(3, DOWN * TILE, ACROSS * TILE)


@pytest.fixture(params=["llm", pytest.param("mp_llm", marks=pytest.mark.slow)])
def engine(request):
    """An ``LLM``, in this process and in processes of its own."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def no_clock(monkeypatch):
    """Blocks grow as if the model took no time."""
    monkeypatch.setattr(pace, "BLOCK_S", 1e9)


def run(engine, scene=SCENE, **options):
    """The raster of a scene."""
    (result,) = engine.generate(scene, OutputParams(tile=TILE, **options), use_tqdm=False)
    return result.outputs.array


def test_blocks_grow(engine, no_clock, monkeypatch):
    """The first block has one tile, each has at most 4 times as many as the largest before, and together all tiles."""
    monkeypatch.setattr(engine.llm_engine.output_processor.binding.paces, "_kept", {})
    sizes = run(engine, processor=StepSize.__name__)[0, ::TILE, ::TILE].ravel()
    blocks, at = [], 0
    while at < len(sizes):
        blocks.append(int(sizes[at]))
        assert set(sizes[at : at + blocks[-1]]) == {blocks[-1]}
        at += blocks[-1]
    assert (blocks[0], sum(blocks)) == (1, ACROSS * DOWN)
    assert max(blocks) >= 8
    assert all(later <= 4 * max(blocks[:number]) for number, later in enumerate(blocks) if number)


def test_a_slow_model_gets_its_tiles_one_by_one(llm, monkeypatch):
    """A block of two would take longer than an engine may work on a block."""
    monkeypatch.setattr(pace, "BLOCK_S", 1e-9)
    assert run(llm, processor=StepSize.__name__).max() == 1


class Alternating(RasterMapper):
    """Maps every third tile to float32."""

    def tensors(self, view, planes):
        return {"pixel_values": planes.astype(np.float32) if planes[0, 0, 0] % 3 == 0 else planes}


def test_tiles_whose_tensors_differ_are_blocks_of_their_own(llm):
    """A block has one dtype; the order of the tiles is kept."""
    inputs = llm.llm_engine.output_processor.binding.inputs
    planes = np.arange(7, dtype=np.uint16)[:, None, None, None] * np.ones((1, 6, TILE, TILE), np.uint16)
    mapper = Alternating("m", tuple("abcdef"), TILE)
    blocks = [tensors["pixel_values"] for tensors in inputs.tiles(SimpleNamespace(mapper=mapper), planes)]
    assert [block.dtype.name for block in blocks] == ["float32", "uint16"] * 2 + ["float32"]
    np.testing.assert_array_equal(np.concatenate(blocks), planes)


def test_tiles_that_are_decoded_at_once_equal_those_that_are_decoded_one_by_one(llm, no_clock, monkeypatch):
    """Classes, probabilities and confidence; the mosaic is that of single tiles."""
    processor = llm.llm_engine.output_processor.binding.processors["segmentation"]
    outputs = ("classes", "probabilities", "confidence")
    at_once = [run(llm, output=output) for output in outputs]
    monkeypatch.setattr(processor, "decode_tiles", lambda raw, params: None, raising=False)
    for output, array in zip(outputs, at_once, strict=True):
        np.testing.assert_array_equal(run(llm, output=output), array)
    np.testing.assert_array_equal(at_once[0], classes(SCENE))


def test_a_processor_that_fails_on_many_tiles_decodes_each(llm, no_clock, monkeypatch):
    """The result is right although ``decode_tiles`` raises, or returns too few outputs."""
    processor = llm.llm_engine.output_processor.binding.processors["segmentation"]

    def fails(raw, params):
        raise ValueError("too many")

    for decode_tiles in (fails, lambda raw, params: []):
        monkeypatch.setattr(processor, "decode_tiles", decode_tiles, raising=False)
        np.testing.assert_array_equal(run(llm), classes(SCENE))
