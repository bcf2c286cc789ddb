"""Tiling lives without the engine."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
for name in ('torch', 'vllm', 'transformers', 'pydantic'): sys.modules[name] = None
import numpy as np
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.base import Source
from vllm_mmout.params import OutputParams
from vllm_mmout.processors import Part, Parts
from vllm_mmout.geo import TileGrid
grid = TileGrid(6, 6, 4)
parts = [Part(index, grid.window(index), RasterOutput(np.ones((1, 4, 4)))) for index in range(len(grid))]
joined = Parts(parts, grid=grid, source=Source(size=(6, 6))).mosaic(OutputParams())
assert (joined.array == 1).all()
print("works")
"""


def test_tiles_are_cut_and_joined_without_the_engine():
    """With torch and vLLM blocked a scene is cut and joined, and importing the package alone loads no codec."""
    code = "import sys, vllm_mmout.geo, vllm_mmout.processors.base\nassert 'tifffile' not in sys.modules\n" + CODE
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "works", done.stderr
