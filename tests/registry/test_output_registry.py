"""OutputRegistry: decorator, architecture table, and what is found again."""

from __future__ import annotations

import pytest

import vllm_mmout
from vllm_mmout.errors import RegistrationError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.registry import MULTIMODAL_OUTPUT_REGISTRY, OutputRegistry, register_output_processor


class Mask(OutputProcessor):
    pass


class Edges(OutputProcessor):
    pass


MASK_PATH = f"{__name__}:Mask"


@pytest.fixture
def registry():
    """A registry that no other test has seen."""
    return OutputRegistry()


def loaded(table):
    """The classes of a look-up's registrations, by name."""
    return {name: registration.load() for name, registration in table.items()}


def test_decorator_returns_the_class_unchanged(registry):
    """The decorated class is the same object, with one attribute more."""

    class FloodNet:
        pass

    before = set(vars(FloodNet))
    assert registry.register_output_processor(Mask)(FloodNet) is FloodNet
    assert set(vars(FloodNet)) - before == {"_output_processor_factories"}
    assert loaded(registry.of_class(FloodNet)) == {"Mask": Mask}


def test_alias_of_the_decorator(registry):
    """register_processor, the name that vLLM's input registry uses, is the same decorator."""

    @registry.register_processor(Mask, name="m")
    class FloodNet:
        pass

    assert loaded(registry.of_class(FloodNet)) == {"m": Mask}


def test_stacked_decorators_add_names_and_the_lowest_is_the_default(registry):
    """Decorators are applied from below: the lowest line registers first and is the default."""

    @registry.register_output_processor(Edges)
    @registry.register_output_processor(Mask)
    class FloodNet:
        pass

    assert list(loaded(registry.of_class(FloodNet)).items()) == [("Mask", Mask), ("Edges", Edges)]


def test_subclass_inherits_until_it_has_its_own(registry):
    """A registration is found through the bases; one of the subclass's own hides those and leaves the base alone."""

    @registry.register_output_processor(Mask)
    class FloodNet:
        pass

    class Heir(FloodNet):
        pass

    assert loaded(registry.of_class(Heir)) == {"Mask": Mask}
    registry.register_output_processor(Edges)(Heir)
    assert loaded(registry.of_class(Heir)) == {"Edges": Edges}
    assert loaded(registry.of_class(FloodNet)) == {"Mask": Mask}


def test_text_model_has_none(registry):
    """A class that nobody decorated, or none at all, has no processors."""
    assert registry.of_class(object) == {}
    assert registry.of_class(None) == {}
    assert registry.of_architectures(["LlamaForCausalLM"]) == {}


@pytest.mark.parametrize("again", [Mask, MASK_PATH], ids=["class", "path"])
def test_the_same_class_twice_is_a_no_op(registry, again):
    """Plugins are loaded in every process: registering again what is there changes nothing, by class or by path."""

    class FloodNet:
        pass

    for processor in (Mask, again):
        registry.register_output_processor(processor)(FloodNet)
        registry.register("FloodNet", processor)
    assert loaded(registry.of_class(FloodNet)) == {"Mask": Mask}
    assert loaded(registry.of_architectures(["FloodNet"])) == {"Mask": Mask}


def test_another_class_under_the_same_name_raises_and_changes_nothing(registry):
    """Two classes under one name: the error names both and the way out; the first one stays."""

    @registry.register_output_processor(Mask)
    class FloodNet:
        pass

    with pytest.raises(
        RegistrationError,
        match=rf"model FloodNet has the output processor 'Mask' already: {MASK_PATH}; cannot register {__name__}:Edges"
        r" .* another name with name=",
    ):
        registry.register_output_processor(Edges, name="Mask")(FloodNet)
    registry.register("FloodNet", Mask)
    with pytest.raises(RegistrationError, match=r"architecture FloodNet has the output processor 'Mask' already"):
        registry.register("FloodNet", "somewhere.else:Mask")
    assert loaded(registry.of_class(FloodNet)) == loaded(registry.of_architectures(["FloodNet"])) == {"Mask": Mask}


def test_architecture_table_does_not_import(registry):
    """A path is imported when a model needs it, not when it is registered."""
    registry.register("Terratorch", "no_such_module_y.deep:Proc")
    registration = registry.of_architectures(["Terratorch"])["Proc"]
    assert registration.path == "no_such_module_y.deep:Proc"
    with pytest.raises(RegistrationError, match="No module named 'no_such_module_y'"):
        registration.load()


def test_first_registered_architecture_counts(registry):
    """Of several architectures of a model the first that is registered gives the processors, all of them in order."""
    registry.register("B", Mask, name="m")
    registry.register("B", Edges)
    registry.register("C", Edges)
    assert list(loaded(registry.of_architectures(["A", "B", "C"]))) == ["m", "Edges"]
    assert {name: [one.name for one in table] for name, table in registry.architectures().items()} == {
        "B": ["m", "Edges"],
        "C": ["Edges"],
    }


def test_what_is_handed_out_is_a_copy(registry):
    """Changing what a look-up returned changes no registration."""

    @registry.register_output_processor(Mask)
    class FloodNet:
        pass

    registry.register("FloodNet", Mask)
    registry.of_class(FloodNet).clear()
    registry.of_architectures(["FloodNet"]).clear()
    assert registry.of_class(FloodNet)
    assert registry.of_architectures(["FloodNet"])


def test_registries_do_not_share_architectures():
    """A table belongs to its registry: what one knows, a fresh one does not."""
    one, other = OutputRegistry(), OutputRegistry()
    one.register("FloodNet", Mask)
    assert other.of_architectures(["FloodNet"]) == {}


def test_wrong_processor_is_an_error_of_the_line_that_names_it(registry):
    """A wrong processor is refused before a class is decorated with it."""
    with pytest.raises(RegistrationError, match=r"must be a subclass of vllm_mmout\.OutputProcessor"):
        registry.register_output_processor(object)
    with pytest.raises(RegistrationError, match=r"must be a subclass of vllm_mmout\.OutputProcessor"):
        registry.register("FloodNet", object)


def test_only_classes_are_decorated(registry):
    """A decorated function or instance is refused."""
    with pytest.raises(RegistrationError, match=r"register_output_processor decorates a model class, got <function"):
        registry.register_output_processor(Mask)(lambda: None)


@pytest.mark.parametrize("architecture", ["", None, Mask])
def test_architecture_is_a_name(registry, architecture):
    """An architecture is given by its name in config.json, not as a class."""
    with pytest.raises(RegistrationError, match=r"architecture must be a name as in config\.json, got "):
        registry.register(architecture, Mask)


def test_module_default():
    """The registry of the process, and its decorator as a plain function, are part of the public surface."""
    assert isinstance(MULTIMODAL_OUTPUT_REGISTRY, OutputRegistry)
    assert register_output_processor == MULTIMODAL_OUTPUT_REGISTRY.register_output_processor
    assert vllm_mmout.MULTIMODAL_OUTPUT_REGISTRY is MULTIMODAL_OUTPUT_REGISTRY
    assert vllm_mmout.register_output_processor is register_output_processor
