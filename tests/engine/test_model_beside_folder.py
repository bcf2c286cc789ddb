"""A model in a module beside its folder, on an engine in processes of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from processes import ONE_THREAD, left_running, new_mark

from scripts import run_script

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MODULE = '''\
"""FloodNet: water or land, by two bands and their neighbourhood."""

from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, register_output_processor
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.processors import SegmentationProcessor


@register_output_processor(SegmentationProcessor)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)
class FloodNet(nn.Module):
    """Two bands [n, 2, height, width] to logits of two classes."""

    def __init__(self, config):
        super().__init__()
        bands, width = len(config["bands"]), config["width"]
        self.body = nn.Sequential(nn.Conv2d(bands, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, pixel_values):
        return self.head(self.body(pixel_values.float() / 10_000))
'''

CONFIG = {
    "architectures": ["FloodNet"],
    "model_type": "mmout",
    "dtype": "float32",
    "bands": ["green", "SWIR 1"],
    "max_size": 256,
    "width": 6,
    "mmout": {"model": "flood_net:FloodNet"},
}

MAKE = """\
import json
from pathlib import Path
import numpy as np, torch
from safetensors.torch import save_file
from flood_net import FloodNet

torch.manual_seed(3)
model = FloodNet(json.loads(Path("flood/config.json").read_text()))
model(torch.rand(8, 2, 32, 32) * 4000)  # gives the normalisation its statistics
model.eval()
images = torch.from_numpy(np.load("image.npy"))[None]
with torch.no_grad():
    land, water = model(images)[0]
    model.head.bias[1] += (land - water).median()  # so that there is as much of one class as of the other
save_file(model.state_dict(), "flood/model.safetensors")
with torch.inference_mode():
    logits = model(images)[0]
np.savez("expected.npz", classes=logits.argmax(0).numpy(), probabilities=logits.softmax(0).numpy())
"""

USE = """\
import sys
import numpy as np
from vllm import LLM
from vllm.v1.engine.core_client import SyncMPClient
from vllm_mmout import OutputParams

if __name__ == "__main__":
    assert "flood_net" not in sys.modules
    llm = LLM("flood")
    assert isinstance(llm.llm_engine.engine_core, SyncMPClient)
    image = np.load("image.npy")
    classes = llm.generate(image)[0].outputs.array[0]
    probabilities = llm.generate(image, OutputParams(output="probabilities"))[0].outputs.array
    np.savez("found.npz", classes=classes, probabilities=probabilities)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the module, beside it the model's folder and two scripts."""
    place = tmp_path_factory.mktemp("beside")
    (place / "flood").mkdir()
    (place / "flood/config.json").write_text(json.dumps(CONFIG))
    for name, text in {"flood_net.py": MODULE, "make.py": MAKE, "use.py": USE}.items():
        (place / name).write_text(text)
    np.save(place / "image.npy", np.random.default_rng(0).integers(0, 9000, (2, 70, 90), np.uint16))
    run_script("make.py", cwd=place, **ONE_THREAD)
    return place


@pytest.fixture(scope="module")
def mark(place):
    """The script has run with the environment's default engine; by this mark its processes are known."""
    mark = new_mark()
    run_script("use.py", cwd=place, VLLM_ENABLE_V1_MULTIPROCESSING="1", **ONE_THREAD, **mark)
    return mark


def test_thirty_lines_are_enough():
    """The whole module, imports and documentation with it, has at most thirty lines."""
    assert len(MODULE.splitlines()) <= 30


@pytest.mark.usefixtures("mark")
def test_gives_what_plain_pytorch_gives(place):
    """Without any flag the classes are those of the same weights in plain PyTorch, and every bit of probabilities."""
    found, expected = np.load(place / "found.npz"), np.load(place / "expected.npz")
    assert 0.4 < expected["classes"].mean() < 0.6
    np.testing.assert_array_equal(found["classes"], expected["classes"])
    np.testing.assert_array_equal(found["probabilities"], expected["probabilities"])


def test_nothing_is_left_running(mark):
    """Once the script has ended none of the engine's processes is there."""
    assert left_running(mark) == []
