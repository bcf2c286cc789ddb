"""Results of several picks of a scene: all of them are delivered, or none, with what lies beside their files."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM's engine is what it waits for")

from vllm_mmout import OutputParams
from vllm_mmout.engine.request.request import Request
from vllm_mmout.engine.scene.pace import Paces
from vllm_mmout.engine.scene.scene import Scene
from vllm_mmout.errors import SaveError
from vllm_mmout.geo import TileGrid
from vllm_mmout.outputs import RasterOutput

pytestmark = pytest.mark.engine


def test_a_delivered_file_goes_with_its_sidecar_where_another_fails(tmp_path):
    """After the failure of a later pick neither the file of an earlier one is there nor the names of its classes."""

    def finish(output, pick):
        if pick == "second":
            raise SaveError("no room")
        output.path = str(output.save(tmp_path / f"{pick}.tif"))
        assert len(list(tmp_path.iterdir())) == 3
        return output

    params = OutputParams(path=str(tmp_path), processor=("first", "second"))
    view = SimpleNamespace(size=(2, 2), bands=(1,), itemsize=1, raster=SimpleNamespace(dtype=np.dtype(np.uint8)))
    binding = SimpleNamespace(choice=SimpleNamespace(pick=lambda processor: processor), paces=Paces())
    scene = Scene(Request(params, finish=finish), view, TileGrid(2, 2, 2), binding)
    output = RasterOutput(np.zeros((1, 2, 2), "uint8"), class_names=["a"])
    with pytest.raises(SaveError, match="no room"):
        scene.deliver({"first": output, "second": output})
    assert not list(tmp_path.iterdir())
