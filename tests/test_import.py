"""What importing the package costs, and what works without torch and vLLM."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_mmout

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "vllm", "transformers")
PUBLIC = {
    "MULTIMODAL_INPUT_REGISTRY",
    "MULTIMODAL_OUTPUT_REGISTRY",
    "AudioOutput",
    "ImageOutput",
    "MMOutError",
    "MappedInput",
    "Mosaic",
    "MultimodalRequestOutput",
    "OutputParams",
    "OutputProcessor",
    "RasterMapper",
    "RasterOutput",
    "StructuredOutput",
    "TensorOutput",
    "VideoOutput",
    "embedded_model",
    "embedded_scene",
    "open_result",
    "register_output_processor",
}


def fresh(code):
    """What a fresh interpreter prints that runs ``code`` with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_neither_torch_nor_vllm():
    """``import vllm_mmout`` loads none of the heavy packages, and of its own only what makes it lazy."""
    code = f"import sys, vllm_mmout\nprint({{m for m in sys.modules if m.split('.')[0] in {(*HEAVY, 'vllm_mmout')}}})"
    assert ast.literal_eval(fresh(code)) == {"vllm_mmout", "vllm_mmout.lazy"}


@pytest.mark.parametrize("module", ["errors", "params", "outputs", "geo", "registry", "processors.base"])
def test_module_works_without_torch_and_vllm(module):
    """The parts that need no engine import where it is not installed, and do not try."""
    block = f"import sys\nfor name in {HEAVY}: sys.modules[name] = None\n"
    assert fresh(f"{block}import vllm_mmout.{module}\nprint('works')") == "works"
    loaded = f"import sys, vllm_mmout.{module}\nprint([name for name in {HEAVY} if name in sys.modules])"
    assert fresh(loaded) == "[]"


def test_public_names_of_parts_without_engine():
    """All public names but the two that belong to the engine can be had without it."""
    names = sorted(PUBLIC - {"MultimodalRequestOutput", "embedded_model"})
    block = f"import sys\nfor name in {HEAVY}: sys.modules[name] = None\n"
    assert fresh(f"{block}from vllm_mmout import {', '.join(names)}\nprint('works')") == "works"


def test_public_surface():
    """The package says by ``__all__`` and ``dir()`` exactly what is public."""
    assert set(vllm_mmout.__all__) == PUBLIC | {"__version__"}
    assert len(vllm_mmout.__all__) == len(PUBLIC) + 1
    assert set(dir(vllm_mmout)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC - {"MultimodalRequestOutput"}))
def test_public_name_resolves(name):
    """Every public name is what its name says, and stays the same object."""
    value = getattr(vllm_mmout, name)
    assert value is getattr(vllm_mmout, name)
    assert getattr(value, "__name__", name) == name


@pytest.mark.engine
def test_request_output_resolves():
    """The result of a request is one of vLLM's pooling results."""
    from vllm.outputs import PoolingRequestOutput

    assert issubclass(vllm_mmout.MultimodalRequestOutput, PoolingRequestOutput)


def test_unknown_name():
    """A name that is not public is an AttributeError that lists those that are."""
    with pytest.raises(AttributeError, match=r"'vllm_mmout' has no attribute 'Outputs' \(public: .*OutputParams"):
        _ = vllm_mmout.Outputs


def test_version_is_that_of_the_metadata():
    """The version stands in one place, or in two that agree."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["metadata"]["version"] in {vllm_mmout.__version__, "attr: vllm_mmout.__version__"}
