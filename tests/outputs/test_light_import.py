"""Outputs and rasters live without the engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCK = "import sys\nfor name in ('torch', 'vllm', 'transformers', 'pydantic'): sys.modules[name] = None\n"
WITH_PYDANTIC = (
    "AreasOutput",
    "ClassArea",
    "ClassScore",
    "ClassificationOutput",
    "Detection",
    "DetectionOutput",
    "FeatureAreas",
    "Keypoint",
    "KeypointsOutput",
    "NodataArea",
    "StructuredOutput",
)
USE = """
import io
import numpy as np
from vllm_mmout.outputs import ImageOutput, RasterOutput, TensorOutput
from vllm_mmout.geo import Georeference, read_raster
place = Georeference(crs="EPSG:32614", transform=(30, 0, 440280, 0, -30, 3159720))
data = RasterOutput(np.ones((1, 4, 4), "uint8"), georeference=place, nodata=0).to_bytes("tif")
assert read_raster(data).georeference.crs == "EPSG:32614"
picture = ImageOutput(np.zeros((4, 4, 3), "uint8")).to_bytes("png")
assert read_raster(picture).array.shape == (3, 4, 4)
assert len(TensorOutput(np.zeros(3)).to_bytes("npy")) > 24
print("works")
"""


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("name", ["vllm_mmout.outputs", "vllm_mmout.geo"])
def test_importing_loads_no_engine_and_no_codec(name: str) -> None:
    """Importing the package alone loads neither the engine nor NumPy, tifffile or Pillow."""
    heavy = "torch, vllm, transformers, pydantic, numpy, tifffile, PIL"
    code = f"import sys, {name}\nprint([name for name in '{heavy}'.split(', ') if name in sys.modules])"
    assert run(code) == "[]"


@pytest.mark.heavy
def test_all_of_it_works_without_the_engine() -> None:
    """With torch and vLLM blocked, results are made, written and read."""
    assert run(BLOCK + USE) == "works"


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["vllm_mmout.outputs", "vllm_mmout.geo"])
def test_the_public_names_are_there_and_others_are_not(name: str) -> None:
    """Every name of __all__ can be imported; a wrong one lists them."""
    code = (
        f"import {name} as module\n"
        "assert set(module.__all__) <= set(dir(module))\n"
        f"assert all(getattr(module, name) is not None for name in module.__all__ if name not in {WITH_PYDANTIC})\n"
        "try: module.Nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    assert f"module '{name}' has no attribute 'Nothing' (public: " in run(code)
