"""A model class written for vLLM alone works as it does without us (`support/handwritten_model.py`)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folders import engine_here, write_folder

from scripts import run_script
from vllm_mmout import RasterOutput

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).resolve().parents[1] / "support/handwritten_model.py"
WEIGHTS = {"weight": torch.tensor([1.5, -0.25]).reshape(2, 1, 1)}
VIT = {"model_type": "vit", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 8}
"""A config.json that vLLM takes without us."""


@pytest.fixture(scope="module")
def vllm_only(tmp_path_factory):
    """A folder of the model, and what it gives in an interpreter that loads no plugin."""
    folder = tmp_path_factory.mktemp("vit")
    write_folder(folder, {"architectures": ["HandWritten"], **VIT}, WEIGHTS)
    done = run_script(SCRIPT, str(folder), VLLM_PLUGINS="")
    assert "ours: False" in done.stdout.splitlines()
    with np.load(folder / "answer.npz") as answer:
        return folder, dict(answer)


def registered(name, module):
    """One of the classes, given to vLLM's own ``ModelRegistry`` as its author would."""
    from vllm.model_executor.models.registry import ModelRegistry

    ModelRegistry.register_model(name, getattr(import_module(module), name))


def assert_same(given, expected):
    assert list(given) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(given[name], array, strict=True)


def sums():
    """What the model gives for its inputs."""
    from handwritten_model import INPUTS

    return [data[:1] * np.float32(1.5) + data[1:] * np.float32(-0.25) for data in INPUTS]


@pytest.mark.slow
def test_encode_gives_what_it_gives_without_us(vllm_only):
    """With the plugin loaded the engine stays vLLM's own, and the raw tensors are the same."""
    from handwritten_model import ARGUMENTS, encoded
    from vllm import LLM
    from vllm.v1.engine.output_processor import OutputProcessor

    folder, expected = vllm_only
    registered("HandWritten", "handwritten_model")
    llm = engine_here(folder, **ARGUMENTS)
    assert type(llm) is LLM
    assert type(llm.llm_engine.output_processor) is OutputProcessor
    assert_same(encoded(llm), expected)
    for array, wanted in zip(expected.values(), sums(), strict=True):
        np.testing.assert_allclose(array, wanted, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["by vLLM's registry of models", "by its path in config.json"])
def test_a_folder_of_ours_may_hold_it(vllm_only, tmp_path, how):
    """With ``"model_type": "mmout"`` it is the same class, with no argument; no adapter stands around it."""
    from handwritten_model import HandWritten, encoded
    from model_folders import runner_of

    _, expected = vllm_only
    config = {"architectures": ["HandWritten"], "model_type": "mmout", "dtype": "float32"}
    if how == "by its path in config.json":
        config |= {"architectures": ["NamedByPath"], "mmout": {"model": "handwritten_model:HandWritten"}}
    else:
        registered("HandWritten", "handwritten_model")
    llm = engine_here(write_folder(tmp_path / "model", config, WEIGHTS))
    assert type(runner_of(llm).get_model()) is HandWritten
    assert_same(encoded(llm), expected)


def test_its_output_processor_decodes(tmp_path):
    """Decorated with ``@register_output_processor`` it answers ``generate`` with decoded objects, in both folders."""
    from handwritten_model import ARGUMENTS, encoded, prompts

    registered("HandWrittenDecoded", "handwritten_decoded")
    name = {"architectures": ["HandWrittenDecoded"]}
    ours = {**name, "model_type": "mmout", "dtype": "float32"}
    engines = [
        engine_here(write_folder(tmp_path / "vit", {**name, **VIT}, WEIGHTS), **ARGUMENTS),
        engine_here(write_folder(tmp_path / "ours", ours, WEIGHTS)),
    ]
    for llm in engines:
        outputs = [result.outputs for result in llm.generate(prompts(), use_tqdm=False)]
        assert {type(output) for output in outputs} == {RasterOutput}
        assert {output.band_names for output in outputs} == {("sums",)}
        raw = encoded(llm)
        for output, array, wanted in zip(outputs, raw.values(), sums(), strict=True):
            np.testing.assert_array_equal(output.array, array, strict=True)
            np.testing.assert_allclose(array, wanted, rtol=0, atol=1e-6)
