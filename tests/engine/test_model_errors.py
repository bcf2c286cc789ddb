"""Wrong things about a model: each is an error that names the thing and the remedy, early, and leaves no process."""

from __future__ import annotations

import multiprocessing.process
import subprocess
import sys
import time
from types import ModuleType

import numpy as np
import pytest
import torch
import wrong_models_for_tests as wrong
from model_folders import children, config_of, engine_elsewhere, engine_here, says, weights_of, write_folder
from only_in_parent_model import OnlyInParent
from processes import PYTHONS_OWN

from scripts import run_script
from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, MMOutError
from vllm_mmout.errors import ModelError, OptionError, RegistrationError

pytestmark = pytest.mark.engine
CONFIG = config_of(wrong.RightNet)


@pytest.fixture
def nothing_left():
    """At the end of a test no process is there that was not before it; vLLM's own trackers of resources aside."""
    before = children()
    yield
    deadline = time.monotonic() + 60
    while left := {pid: line for pid, line in children().items() if pid not in before and PYTHONS_OWN not in line}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory):
    """Have vLLM ask other programs about the machine, as it does once, before anything is counted."""
    from vllm import LLM  # noqa: F401 - its import asks too
    from vllm.engine.arg_utils import EngineArgs

    folder = write_folder(tmp_path_factory.mktemp("right"), CONFIG, {})
    EngineArgs(model=folder).create_engine_config()


@pytest.fixture
def started(asked_once, monkeypatch):
    """What was started while a test ran: processes of multiprocessing, and others."""
    found = []

    def refuse(self, *args, **kwargs):
        found.append((self, args))
        raise AssertionError(f"{found[-1]} was started")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    yield found
    assert found == []


def named(model, **entries):
    return config_of(wrong.RightNet, **entries) | {"mmout": {"model": model}}


BEFORE_START = {
    "no architectures": (
        {key: value for key, value in CONFIG.items() if key != "architectures"},
        OptionError,
        ["config.json must name the model's class", '"architectures": ["YourModel"]'],
    ),
    "architectures that are empty": (CONFIG | {"architectures": []}, OptionError, ['"architectures": ["YourModel"]']),
    "architectures that are text": (CONFIG | {"architectures": "Net"}, OptionError, ["must name", "'Net'"]),
    "an unknown architecture": (
        {"architectures": ["NobodysNet"], "model_type": "mmout"},
        RegistrationError,
        ["'NobodysNet'", "WaterIndex", '"mmout": {"model": "module:Class"}', "install its package"],
    ),
    "a path without a class": (
        named("wrong_models_for_tests"),
        OptionError,
        ['"module:Class"', "wrong_models_for_tests"],
    ),
    "a path that is a number": (named(5), OptionError, ['"module:Class"', "got 5"]),
    "a module that is missing": (
        named("no_such_module:Net"),
        RegistrationError,
        ["no_such_module:Net", "ModuleNotFoundError", "PYTHONPATH"],
    ),
    "a class that is missing": (
        named("wrong_models_for_tests:Missing"),
        RegistrationError,
        ["wrong_models_for_tests:Missing", "has no 'Missing'", "correct the path"],
    ),
    "a class that is no module of torch": (
        named("wrong_models_for_tests:NoModule"),
        RegistrationError,
        ["wrong_models_for_tests:NoModule", "torch.nn.Module"],
    ),
}


@pytest.mark.parametrize(("config", "kind", "parts"), BEFORE_START.values(), ids=BEFORE_START)
def test_a_wrong_config_is_said_before_anything_starts(started, tmp_path, config, kind, parts):
    """What config.json says of the class is checked first."""
    with pytest.raises(MMOutError) as caught:
        engine_elsewhere(write_folder(tmp_path / "model", config, {}))
    assert type(caught.value) is kind
    says(caught.value, *parts)


WRONG_CLASS = {
    "its forward takes tensors by position": (wrong.TakesByPosition, ["TakesByPosition.forward", "drop the '/'"]),
    "its forward takes nothing": (wrong.TakesNothing, ["TakesNothing.forward", "forward(self, pixel_values)"]),
    "its forward has another name than its mapper": (
        wrong.TakesOtherKeyword,
        ["TakesOtherKeyword", "gives 'pixel_values'", "forward takes pixels", "use the same names"],
    ),
    "its mapper's factory raises": (
        wrong.FactoryRaises,
        ["factory of FactoryRaises", "KeyError: 'nowhere'", "correct"],
    ),
    "its mapper's factory gives nothing": (
        wrong.FactoryGivesNothing,
        ["FactoryGivesNothing", "(data, params)", "None"],
    ),
    "its mapper wants an entry of config.json": (wrong.WantsBands, ['"bands" in config.json', "got None"]),
    "it has no mapper and its folder no processor": (
        wrong.Unmapped,
        ["no input mapper", "register_input_mapper", "preprocessor_config.json"],
    ),
}


@pytest.mark.parametrize(("model", "parts"), WRONG_CLASS.values(), ids=WRONG_CLASS)
def test_a_wrong_class_is_said_before_anything_starts(started, tmp_path, model, parts):
    """What can be seen of class and mapper is checked before a process of the engine is started."""
    with pytest.raises(MMOutError) as caught:
        engine_elsewhere(write_folder(tmp_path / "model", config_of(model), {}))
    says(caught.value, *parts)


WEIGHTS = {
    "one is missing": (lambda w: w.pop("head.bias"), ["missing: head.bias"]),
    "one is unexpected": (lambda w: w.update(tail=torch.zeros(1)), ["unexpected: tail"]),
    "one has another shape": (
        lambda w: w.update({"head.bias": torch.zeros(3)}),
        ["another shape", "head.bias", "float32 [2]", "float32 [3]"],
    ),
    "one has another dtype": (
        lambda w: w.update({"head.bias": torch.zeros(2, dtype=torch.int32)}),
        ["dtype", "head.bias", "float32 [2]", "int32 [2]"],
    ),
    "a buffer is missing": (lambda w: w.pop("steps"), ["missing: steps"]),
    "several things are wrong": (
        lambda w: (w.pop("head.bias"), w.update(tail=torch.zeros(1))),
        ["missing: head.bias", "unexpected: tail"],
    ),
}


@pytest.mark.parametrize(("change", "parts"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights_that_do_not_fit_are_named(nothing_left, tmp_path, change, parts):
    """Missing, unexpected and unlike weights are said at the start, with what to do."""
    weights = weights_of(wrong.RightNet, CONFIG)
    change(weights)
    with pytest.raises(ModelError) as caught:
        engine_here(write_folder(tmp_path / "model", CONFIG, weights))
    says(caught.value, "RightNet", "safetensors.torch.save_file(model.state_dict()", *parts)


def test_a_file_of_weights_that_cannot_be_read(nothing_left, tmp_path):
    """The folder is named, and what belongs there."""
    folder = write_folder(tmp_path / "model", CONFIG, None)
    (tmp_path / "model/model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError) as caught:
        engine_here(folder)
    says(caught.value, "RightNet", folder, "safetensors.torch.save_file(model.state_dict()")


AT_START = {
    "its constructor raises": (wrong.RaisesInInit, ["RaisesInInit", "KeyError: 'classes'", "config.json"]),
    "its forward raises": (
        wrong.RaisesOnLarge,
        ["RaisesOnLarge", "ValueError: too large for me", "pixel_values float32 [3, 64, 64]", "correct its forward"],
    ),
    "a list": (wrong.GivesList, ["GivesList", "a tensor or a dict of tensors", "got list"]),
    "nothing": (wrong.GivesNothing, ["GivesNothing", "a tensor or a dict of tensors", "got NoneType"]),
    "a list in a dict": (wrong.GivesListInDict, ["GivesListInDict", "a tensor or a dict of tensors", "got list"]),
    "an empty dict": (wrong.GivesEmptyDict, ["GivesEmptyDict", "at least one tensor"]),
    "the classes on axis 0": (wrong.GivesClassesFirst, ["GivesClassesFirst", "axis 0", "[2, 1, 64, 64]", "1 request"]),
    "one number": (wrong.GivesNumber, ["GivesNumber", "axis 0", "shape []"]),
    "a dummy that is no input": (wrong.DummyIsNumber, ["dummy data of DummyIsNumber", "multi_modal_data", "got 5"]),
    "tokens that are no number": (wrong.TokensAreText, ["max tokens of TokensAreText", "'many'"]),
}


@pytest.mark.parametrize(("model", "parts"), AT_START.values(), ids=AT_START)
def test_a_model_that_cannot_run_is_said_at_the_start(nothing_left, tmp_path, model, parts):
    """The model is made and run once on its dummy input before the first request can come."""
    with pytest.raises(MMOutError) as caught:
        engine_here(write_folder(tmp_path / "model", config_of(model), weights_of(wrong.RightNet, CONFIG)))
    says(caught.value, *parts)


ELSEWHERE = {
    "no weights": (
        wrong.RightNet,
        False,
        ["RightNet", "cannot be read from", "safetensors.torch.save_file(model.state_dict()"],
    ),
    "a module that raises there": (
        OnlyInParent,
        True,
        ["only_in_parent_model:OnlyInParent", "cannot import model class", "ImportError: no licence in this process"],
    ),
    "a forward that raises": (
        wrong.RaisesOnLarge,
        True,
        ["RaisesOnLarge", "ValueError: too large for me", "correct its forward"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "weights", "parts"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_fails_in_the_engines_process_is_raised_here(nothing_left, tmp_path, model, weights, parts):
    """With an engine in processes of its own the error is said here too, and none of them is left."""
    folder = write_folder(tmp_path / "model", config_of(model), weights_of(wrong.RightNet, CONFIG) if weights else None)
    with pytest.raises(MMOutError) as caught:
        engine_elsewhere(folder)
    says(caught.value, *parts)


def test_a_class_inside_a_function_is_refused_for_other_processes(started, tmp_path):
    """A class that only this process can know is refused before the engine's are started."""

    @MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: wrong.THREE_BANDS)
    class LocalNet(wrong.RightNet):
        pass

    folder = write_folder(tmp_path / "model", {"architectures": ["LocalNet"], "model_type": "mmout"}, {})
    with pytest.raises(RegistrationError) as caught:
        engine_elsewhere(folder)
    says(caught.value, "LocalNet", "inside a function", "top of a module")


def test_a_class_inside_a_function_works_in_this_process(tmp_path):
    """The control of the test above: an engine in this process has it."""

    @MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: wrong.THREE_BANDS)
    class HereNet(wrong.RightNet):
        pass

    config = {"architectures": ["HereNet"], "model_type": "mmout", "dtype": "float32"}
    llm = engine_here(write_folder(tmp_path / "model", config, weights_of(wrong.RightNet, CONFIG)))
    (result,) = llm.generate(np.ones((3, 4, 4), np.uint8), use_tqdm=False)
    assert result.outputs.array.shape == (2, 4, 4)


def test_a_class_of_a_module_without_a_file_is_refused_for_other_processes(started, tmp_path, monkeypatch):
    """A module that was made by code, not found on the path, cannot be imported elsewhere."""
    module = ModuleType("made_by_code")
    module.MadeNet = type("MadeNet", (wrong.RightNet,), {"__module__": "made_by_code"})
    monkeypatch.setitem(sys.modules, "made_by_code", module)
    config = {"architectures": ["MadeNet"], "model_type": "mmout", "mmout": {"model": "made_by_code:MadeNet"}}
    with pytest.raises(RegistrationError) as caught:
        engine_elsewhere(write_folder(tmp_path / "model", config, {}))
    says(caught.value, "MadeNet", "'made_by_code'", "VLLM_ENABLE_V1_MULTIPROCESSING=0")


AT_THE_PROMPT = """
import json, sys
import psutil
from wrong_models_for_tests import MULTIMODAL_INPUT_REGISTRY, RightNet, THREE_BANDS
from vllm import LLM
from vllm_mmout.errors import RegistrationError

@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: THREE_BANDS)
class PromptNet(RightNet):
    pass

try:
    LLM(sys.argv[1])
except RegistrationError as error:
    print("refused:", error)
print("left:", [one.cmdline() for one in psutil.Process().children(recursive=True)])
"""


@pytest.mark.slow
def test_a_class_of_the_prompt_is_refused_for_other_processes(tmp_path):
    """A class of ``python -c``, or of a notebook, cannot be imported by the engine's processes."""
    folder = write_folder(tmp_path / "model", {"architectures": ["PromptNet"], "model_type": "mmout"}, {})
    lines = run_script("-c", AT_THE_PROMPT, folder, VLLM_ENABLE_V1_MULTIPROCESSING="1").stdout.splitlines()
    (refusal,) = [line for line in lines if line.startswith("refused: ")]
    says(refusal, "PromptNet", "a notebook or at the prompt", "VLLM_ENABLE_V1_MULTIPROCESSING=0")
    assert "left: []" in lines
