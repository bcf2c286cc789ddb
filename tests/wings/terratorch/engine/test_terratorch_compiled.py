"""A TerraTorch folder whose network is compiled when the engine starts."""

from __future__ import annotations

import pytest
from engines_for_terratorch import started
from plain_terratorch import check_mask, location_of, read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiling")]


def test_tiles_of_a_scene_run_compiled(flood, plain, scene, monkeypatch):
    """Those of a file that says where it lies; nothing is compiled after the start."""
    from torch._dynamo.utils import counters

    from vllm_mmout.models.compiled import CompiledForward

    batches, run = [], CompiledForward._batch
    engine = started(flood, "float32", max_num_seqs=1, additional_config={"mmout": {"compile": "on"}})
    frames = counters["frames"]["total"]
    monkeypatch.setattr(CompiledForward, "_batch", lambda forward, alike: batches.append(1) or run(forward, alike))
    raster = engine.generate(str(scene), use_tqdm=False)[0].outputs
    assert len(batches) == 4
    assert counters["frames"]["total"] == frames > 0
    check_mask(raster.read()[0], plain(flood).by_tiles(read(scene), location_of(scene)))
