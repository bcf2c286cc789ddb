"""Tiles reach a worker in another process through shared memory."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile

from vllm_mmout import OutputParams
from vllm_mmout.models.inputs.shared_memory import SharedMemory

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(SharedMemory.of_engines(1, 4096) is None, reason="memory files need Linux"),
]


def test_a_scene_is_read_there_and_leaves_nothing_there(llm, mp_llm, monkeypatch):
    """Results equal those of an engine in this process, pixels are not sent as bytes, and no memory stays in use."""
    from vllm_mmout.engine.scene import scene as scenes

    pixels = np.random.default_rng(7).integers(0, 3000, (6, 300, 260)).astype(np.uint16)
    pixels[:, :70, :70] = 0  # a block with a tile that is not sent
    params = OutputParams(processor="segmentation", tile=64, overlap=8, nodata=0)
    monkeypatch.setattr(scenes, "_MOST_TILES", 4)
    expected = llm.generate(pixels, params, use_tqdm=False)[0].outputs.array
    memory = mp_llm.llm_engine.output_processor.binding.memory
    mp_llm.generate(pixels, params, use_tqdm=False)  # the worker maps the memory
    assert memory.is_mapped_by(0)
    offsets = []
    offset_of = memory.offset_of
    monkeypatch.setattr(
        SharedMemory, "offset_of", lambda self, tensor: offsets.append(offset_of(tensor)) or offsets[-1]
    )
    result = mp_llm.generate(pixels, params, use_tqdm=False)[0].outputs.array
    assert np.array_equal(result, expected)
    sent = offsets[1::2]
    assert len(sent) > 3
    assert all(sent)
    assert memory.free_bytes == memory.nbytes


def test_tiles_travel_as_the_file_stores_them(llm, mp_llm, monkeypatch, tmp_path):
    """On a GPU the bands of a pixel stay side by side until the worker has the tiles. The result is the same."""
    pixels = np.random.default_rng(8).integers(0, 3000, (200, 260, 6)).astype(np.uint16)
    tifffile.imwrite(path := tmp_path / "scene.tif", pixels, tile=(64, 64), photometric="minisblack", planarconfig=1)
    params = OutputParams(processor="segmentation", tile=64, overlap=8)
    expected = llm.generate(str(path), params, use_tqdm=False)[0].outputs.array
    binding = mp_llm.llm_engine.output_processor.binding
    mp_llm.generate(str(path), params, use_tqdm=False)  # the worker maps the memory
    monkeypatch.setattr(binding.memory, "bands_last", True)
    strides = []
    offset_of = SharedMemory.offset_of
    monkeypatch.setattr(
        SharedMemory, "offset_of", lambda self, tensor: strides.append(tensor.stride()[1]) or offset_of(self, tensor)
    )
    assert np.array_equal(mp_llm.generate(str(path), params, use_tqdm=False)[0].outputs.array, expected)
    assert set(strides) == {1}
    assert binding.memory.free_bytes == binding.memory.nbytes
