"""InputRegistry: vLLM's own registry under our name, and input mappers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_mmout.errors import RegistrationError
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY, InputRegistry
from vllm_mmout.registry.input_registry import MapperChoice

ROOT = Path(__file__).resolve().parents[2]


def to_tensors(raw):
    """An input mapper."""
    return {"pixels": raw}


def other(raw):
    """Another input mapper."""
    return {}


def test_mapper_is_found_through_the_bases():
    """A mapper serves the decorated class and its heirs, until one has its own; other classes have none."""
    registry = InputRegistry()

    class Net:
        pass

    assert registry.register_input_mapper(to_tensors)(Net) is Net

    class Heir(Net):
        pass

    assert registry.registered(Heir).mapper == MapperChoice(factory=to_tensors)
    registry.register_input_mapper(other)(Heir)
    assert registry.registered(Heir).mapper == MapperChoice(factory=other)
    assert registry.registered(Net).mapper == MapperChoice(factory=to_tensors)
    assert registry.registered(int).mapper is None


def test_same_mapper_twice_is_a_no_op_and_another_one_raises():
    """A class has one mapper: the same one again changes nothing, another one is refused by name."""
    registry = InputRegistry()

    @registry.register_input_mapper(to_tensors)
    @registry.register_input_mapper(to_tensors)
    class Net:
        pass

    with pytest.raises(
        RegistrationError, match=r"model Net has a registered mapper already: .*<function to_tensors.*<function other"
    ):
        registry.register_input_mapper(other)(Net)
    assert registry.registered(Net).mapper == MapperChoice(factory=to_tensors)


def test_wrong_mapper_and_wrong_target():
    """A mapper must be callable, and what it is put on a class."""
    with pytest.raises(RegistrationError, match="an input mapper must be callable, got 5"):
        InputRegistry().register_input_mapper(5)
    with pytest.raises(RegistrationError, match="a model class is decorated with its mapper, got 5"):
        InputRegistry().register_input_mapper(to_tensors)(5)


def test_copying_does_not_import_vllm():
    """What Python itself asks of any object is answered without vLLM."""
    code = (
        "import copy, sys; from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY as r\n"
        "copy.copy(r); repr(r); dir(r); assert not hasattr(r, '__wrapped__')\n"
        "print('vllm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_vllm_the_error_says_what_to_install():
    """Where vLLM is not installed, what would be its registry's is an error with the remedy."""
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'vllm': raise ModuleNotFoundError('No module named vllm', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, MMOutError\n"
        "try: MULTIMODAL_INPUT_REGISTRY.create_processor\n"
        "except MMOutError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 'vLLM\'s, which is not installed; pip install "vllm-mmout[gpu]"' in done.stdout


@pytest.mark.engine
def test_everything_else_is_vllms_registry():
    """The methods of vLLM's registry are there, bound to vLLM's own object."""
    from vllm.multimodal import MULTIMODAL_REGISTRY

    assert MULTIMODAL_INPUT_REGISTRY.create_processor == MULTIMODAL_REGISTRY.create_processor
    with pytest.raises(AttributeError, match="no_such_method"):
        _ = MULTIMODAL_INPUT_REGISTRY.no_such_method


@pytest.mark.engine
def test_both_registries_see_the_same_models():
    """A model registered with ours carries the factory that vLLM's registry looks for, and the other way round."""
    from vllm.multimodal import MULTIMODAL_REGISTRY

    parts = {"processor": object(), "info": object(), "dummy_inputs": object()}
    made = []
    for registry in (MULTIMODAL_INPUT_REGISTRY, MULTIMODAL_REGISTRY):
        net = type("Net", (), {})
        register = registry.register_processor(
            parts["processor"], info=parts["info"], dummy_inputs=parts["dummy_inputs"]
        )
        assert register(net) is net
        made.append(net._processor_factory)
    assert made[0] == made[1]
    assert made[0].info is parts["info"]
