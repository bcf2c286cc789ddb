"""Tiles reach a worker in another process through shared memory."""

from __future__ import annotations

import numpy as np
import pytest

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
