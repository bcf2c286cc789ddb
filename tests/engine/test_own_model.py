"""A model class of one's own with the decorator, through the real engine (`tests/support/own_model.py`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts import answer_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]
SCRIPT = Path(__file__).resolve().parents[1] / "support/own_model.py"
DEPTH = np.arange(12).reshape(3, 4) / 2
"""What the model emits for the script's input."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each engine of the script gave."""
    return answer_of(SCRIPT, tmp_path_factory.mktemp("models"))


def mask(threshold):
    return {"kind": "RasterOutput", "array": [(threshold < DEPTH).astype(int).tolist()]}


REPORT = {"kind": "Report", "deepest": 5.5, "shape": [3, 4]}


def test_the_decorator_is_enough(answers):
    """A decorated class gives decoded objects, the lowest decorator's by default, each by its name, both in a dict."""
    found = answers["decorator"]
    assert (found["names"], found["classes"]) == (["FloodMask", "report"], ["FloodMask", "FloodReport"])
    assert found["chosen_by"].startswith("@register_output_processor on FloodNet")
    assert found["given"] == [mask(1), mask(1), REPORT, {"report": REPORT, "FloodMask": mask(1)}]
    assert list(found["given"][3]) == ["report", "FloodMask"]


def test_an_object_of_the_authors_own_comes_as_it_is(answers):
    """Offline ``decode`` may return anything; the class that it made is the class that arrives."""
    assert answers["decorator"]["given"][2]["kind"] == "Report"


def test_config_json_goes_before_the_decorator(answers):
    """The folder names one of the class's processors: it is the only one, and the default."""
    found = answers["config"]
    assert (found["names"], found["chosen_by"]) == (["report"], "config.json")
    assert found["given"] == [REPORT, REPORT, {"report": REPORT}]


def test_the_engine_argument_goes_before_config_json(answers):
    """The argument names another one, with an option of it."""
    found = answers["argument"]
    assert found["names"] == ["FloodMask"]
    assert 'additional_config["mmout"]' in found["chosen_by"]
    assert found["given"] == [mask(3), mask(3), {"FloodMask": mask(3)}]


def test_an_option_alone_keeps_the_decorators_processors(answers):
    """Options reach the constructor of the processor that takes them; the other one is as it was."""
    found = answers["option"]
    assert found["names"] == ["FloodMask", "report"]
    assert found["given"][:3] == [mask(5), mask(5), REPORT]


def test_processors_can_be_called_otherwise(answers):
    """A table of names gives requests the names, for the class's own processors and for installed ones."""
    found = answers["alias"]
    assert (found["names"], found["classes"]) == (["mask", "raw"], ["FloodMask", "TensorProcessor"])
    assert found["given"][0] == mask(1)
    assert found["given"][2] == {"kind": "TensorOutput", "array": [DEPTH.tolist()]}


@pytest.mark.parametrize("how", ["off by argument", "off by config"])
def test_none_switches_it_off(answers, how):
    """With "none" the engine is vLLM's own: raw tensors from ``encode``, and its own refusal of ``generate``."""
    found = answers[how]
    assert found["own_class"]
    assert found["raw"] == [DEPTH.tolist()]
    assert "only supported for generative models" in found["generate"]
