"""Which class serves a folder: config.json, this process, installed packages, vLLM; and what children can import."""

from __future__ import annotations

import json
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="models are torch modules")
pytest.importorskip("vllm", reason="models are announced to vLLM")
pytestmark = pytest.mark.engine

from vllm_mmout.engine.hooks import plugin  # noqa: E402 - as above
from vllm_mmout.errors import OptionError, RegistrationError  # noqa: E402 - after the imports that may skip
from vllm_mmout.models import model_folders as known  # noqa: E402 - as above
from vllm_mmout.models import vllm_registry  # noqa: E402 - as above
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY, InputRegistry  # noqa: E402 - as above


class Decorated(torch.nn.Module):
    """Decorated by the fixture."""

    def forward(self, pixel_values):
        """Not run."""


@pytest.fixture(autouse=True)
def own_tables(monkeypatch):
    """What a test announces is forgotten after it."""
    from vllm.model_executor.models.registry import ModelRegistry

    monkeypatch.setattr(known, "_served", {})
    monkeypatch.setattr(ModelRegistry, "models", dict(ModelRegistry.models))
    monkeypatch.delenv(known.ENVIRONMENT, raising=False)
    registry = InputRegistry()
    registry.register_image_input_mapper()(Decorated)
    monkeypatch.setattr(MULTIMODAL_INPUT_REGISTRY, "_models", registry._models)


@pytest.fixture
def announced(monkeypatch):
    """Announces a config and gives what children would read."""

    def announce(**config):
        vllm_registry.announce(config)
        return json.loads(known.os.environ[known.ENVIRONMENT])

    return announce


def test_the_folder_names_the_class(announced):
    """``"mmout": {"model": ...}`` goes before a decorated class of that name."""
    path = "torch.nn:Identity"
    assert announced(architectures=["Decorated"], mmout={"model": path}) == {"Decorated": path}
    assert known.served_class("Decorated") is torch.nn.Identity


def test_a_decorated_class_serves_its_name(announced):
    """A class that this process decorated needs no entry in the folder."""
    assert announced(architectures=["Decorated"]) == {"Decorated": f"{__name__}:Decorated"}
    assert known.served_class("Decorated") is Decorated


def test_a_class_inside_a_function_is_found_here(announced):
    """In this process a class need not be importable: the decorator has seen it."""

    @MULTIMODAL_INPUT_REGISTRY.register_image_input_mapper()
    class Local(torch.nn.Module):
        """Found by the registry alone."""

    announced(architectures=["Local"])
    assert known.served_class("Local") is Local


def test_a_class_defined_anew_replaces_the_old_one(announced):
    """A notebook's cell may be run again: the class of the last run is served."""

    def define():
        @MULTIMODAL_INPUT_REGISTRY.register_image_input_mapper()
        class Again(torch.nn.Module):
            """The same name in the same place."""

        return Again

    define()
    announced(architectures=["Again"])
    newer = define()
    assert known.served_class("Again") is newer


def test_our_own_model_needs_no_import(announced):
    """A class of the package's table is known without anybody having imported it."""
    assert announced(architectures=["WaterIndex"]) == {
        "WaterIndex": "vllm_mmout.models.embedded.water_index:WaterIndex"
    }


def test_what_vllm_knows_itself_is_left_to_it():
    """An architecture of vLLM's own registry is not announced."""
    vllm_registry.announce({"architectures": ["LlamaForCausalLM"]})
    assert known.ENVIRONMENT not in known.os.environ
    assert not known.is_served("LlamaForCausalLM")


def test_children_learn_of_all_that_was_announced(announced, monkeypatch):
    """The environment names every class; a process started with it serves them, and imports none."""
    announced(architectures=["Decorated"])
    table = announced(architectures=["Other"], mmout={"model": "torch.nn:Identity"})
    assert set(table) == {"Decorated", "Other"}
    monkeypatch.setattr(known, "_served", {})
    monkeypatch.setenv(known.ENVIRONMENT, json.dumps({"Nowhere": "no_such_module:Nowhere"}))
    plugin.load()
    assert known.is_served("Nowhere")
    from vllm.model_executor.models.registry import ModelRegistry

    with pytest.raises(RegistrationError, match="no_such_module"):
        ModelRegistry.models["Nowhere"].load_model_cls()


@pytest.mark.parametrize("text", ["no json", "5", '["Net"]', '{"Net": 5}'])
def test_a_malformed_environment_stops_nothing(monkeypatch, caplog, text):
    """The plugin reads it in every process, those of text models too: one line of the log, no exception."""
    monkeypatch.setenv(known.ENVIRONMENT, text)
    monkeypatch.setattr(known.logging.getLogger("vllm"), "propagate", True)
    assert known.announced() == {}
    assert "MMOUT_MODELS" in caplog.text


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        ({}, OptionError, r'add "architectures": \["YourModel"\]; it has None'),
        ({"architectures": []}, OptionError, r"it has \[\]"),
        ({"architectures": "Net"}, OptionError, "it has 'Net'"),
        ({"architectures": [5]}, OptionError, r"it has \[5\]"),
        (
            {"architectures": ["Net"]},
            RegistrationError,
            r"'Net', which is not registered here \(known: Decorated, .*Wat",
        ),
        ({"architectures": ["Net"], "mmout": {"model": "net"}}, OptionError, "must be \"module:Class\", got 'net'"),
        ({"architectures": ["Net"], "mmout": {"model": 5}}, OptionError, 'must be "module:Class", got 5'),
        (
            {"architectures": ["Net"], "mmout": {"model": "no.such:Net"}},
            RegistrationError,
            "No module named 'no'.*PYTHON",
        ),
        ({"architectures": ["Net"], "mmout": {"model": "json:Net"}}, RegistrationError, "module 'json' has no 'Net'"),
        ({"architectures": ["Net"], "mmout": {"model": "json:JSONDecoder"}}, RegistrationError, "torch.nn.Module, got"),
    ],
)
def test_what_cannot_be_served_is_refused(config, error, says):
    """The error names the entry and what to write instead."""
    with pytest.raises(error, match=says):
        vllm_registry.announce(config)


def test_two_decorated_classes_of_one_name_must_be_told_apart(announced):
    """Which one serves the folder is not guessed; config.json says it."""
    other = types.new_class("Decorated", (torch.nn.Module,))
    other.__module__ = "elsewhere"
    MULTIMODAL_INPUT_REGISTRY.register_image_input_mapper()(other)
    with pytest.raises(RegistrationError, match=r"several models are called 'Decorated': .*elsewhere:Decorated"):
        vllm_registry.announce({"architectures": ["Decorated"]})
    announced(architectures=["Decorated"], mmout={"model": f"{__name__}:Decorated"})
    assert known.served_class("Decorated") is Decorated


def test_a_name_of_vllms_own_models_is_refused():
    """A folder may not put another class in the place of a model that other engines of this process need."""
    with pytest.raises(RegistrationError, match=r"vLLM has a model of its own called 'BertModel'.*write another name"):
        vllm_registry.announce({"architectures": ["BertModel"], "mmout": {"model": "torch.nn:Identity"}})


class TestForChildren:
    """`check_for_children`: whether a process started anew can import a class."""

    def test_a_class_of_an_installed_module_can_be(self):
        """What the path holds needs no word."""
        known.check_for_children(torch.nn.Identity)

    def test_a_class_inside_a_function_cannot_be(self):
        """The error says to define it at the top of a module."""

        class Local:
            pass

        with pytest.raises(RegistrationError, match=r"defined inside a function.*at the top of a module"):
            known.check_for_children(Local)

    def test_a_module_that_is_not_on_the_path_cannot_be(self, monkeypatch):
        """That it is loaded here does not help the engine's processes."""
        module = types.ModuleType("made_by_hand")
        monkeypatch.setitem(sys.modules, "made_by_hand", module)
        module.Net = type("Net", (), {"__module__": "made_by_hand", "__qualname__": "Net"})
        with pytest.raises(
            RegistrationError, match=r"module 'made_by_hand', which is not on the path.*MULTIPROCESSING=0"
        ):
            known.check_for_children(module.Net)

    def test_a_script_can_be_and_a_prompt_cannot(self, monkeypatch):
        """A class of ``__main__`` is importable where ``__main__`` has a file."""
        net = type("Net", (), {"__module__": "__main__", "__qualname__": "Net"})
        script, prompt = types.ModuleType("__main__"), types.ModuleType("__main__")
        script.__file__ = "script.py"
        monkeypatch.setitem(sys.modules, "__main__", script)
        known.check_for_children(net)
        monkeypatch.setitem(sys.modules, "__main__", prompt)
        with pytest.raises(RegistrationError, match="defined in a notebook or at the prompt"):
            known.check_for_children(net)
