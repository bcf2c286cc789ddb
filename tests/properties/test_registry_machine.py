"""The output registry against a plain dict: any order of registrations, by class or path, with clashes between."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from vllm_mmout.errors import RegistrationError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.registry import OutputRegistry
from vllm_mmout.registry.resolve import resolve


class Mask(OutputProcessor):
    pass


class Edges(OutputProcessor):
    name = "edges"


class Depth(OutputProcessor):
    pass


TARGETS = [
    (Mask, Mask, "Mask"),
    (Edges, Edges, "edges"),
    (Depth, Depth, "Depth"),
    (f"{__name__}:Mask", Mask, "Mask"),
    (f"{__name__}:Edges", Edges, "Edges"),
    (f"{__name__}:Depth", Depth, "Depth"),
]
"""What is registered, the class that it means, and the name it has without being given one."""

targets = st.sampled_from(TARGETS)
names = st.none() | st.sampled_from(["Mask", "edges", "a"])
architectures = st.sampled_from(["A", "B", "C"])


class RegistryMachine(RuleBasedStateMachine):
    """Registers at random; the model is a dict of dicts, name -> class in order of registration."""

    models = Bundle("models")

    def __init__(self):
        super().__init__()
        self.registry = OutputRegistry()
        self.by_architecture = {}
        self.own = {}  # model class -> its own table; a class without registrations of its own has no entry

    @initialize(target=models)
    def first_model(self):
        """There is always a model class to decorate."""
        return type("Model", (), {})

    @rule(target=models, bases=st.lists(models, max_size=2, unique=True))
    def subclass(self, bases):
        """A model class may have bases with registrations; bases that Python cannot order are left out."""
        try:
            return type("Model", tuple(bases), {})
        except TypeError:
            return type("Model", tuple(bases[:1]), {})

    def add(self, table, meant, name):
        """Add to the plain dict what the registry is expected to add, or say that it is to refuse."""
        if name in table and table[name] is not meant:
            return pytest.raises(RegistrationError, match=f"has the output processor '{name}' already")
        table.setdefault(name, meant)
        return nullcontext()

    @rule(model=models, what=targets, name=names)
    def decorate(self, model, what, name):
        """Decorating adds a name to the class's own table, or is refused for a clash and changes nothing."""
        given, meant, default = what
        with self.add(self.own.setdefault(model, {}), meant, name or default):
            assert self.registry.register_output_processor(given, name=name)(model) is model

    @rule(architecture=architectures, what=targets, name=names)
    def register(self, architecture, what, name):
        """Registering adds a name to the architecture's table, or is refused for a clash and changes nothing."""
        given, meant, default = what
        with self.add(self.by_architecture.setdefault(architecture, {}), meant, name or default):
            self.registry.register(architecture, given, name=name)

    def expected_on(self, model):
        """The table of the nearest class with one, in the order in which Python looks attributes up."""
        return next((self.own[kind] for kind in model.__mro__ if kind in self.own), {})

    def expected_for(self, asked):
        """The table of the first architecture with one."""
        return next((self.by_architecture[one] for one in asked if one in self.by_architecture), {})

    @rule(model=models, asked=st.lists(architectures, max_size=3), installed=st.sampled_from(["tensor", "image"]))
    def look_up(self, model, asked, installed):
        """Without a config the architecture's table serves, then the class's, then none; each name can be asked for."""

        def choose(value):
            return resolve(
                self.registry,
                engine_table=value and {"output_processor": value},
                config={},
                architectures=asked,
                model_class=lambda: model,
            )

        served = self.expected_for(asked) or self.expected_on(model)
        choice = choose(None)
        assert (list(choice.processors.items()) if choice else []) == list(served.items())
        named = {**self.expected_on(model), **self.expected_for(asked)}
        if named:
            assert list(choose(list(named)).processors.items()) == list(named.items())
        for name in {"Mask", "edges", "a"} - named.keys():
            with pytest.raises(RegistrationError, match=f"unknown output processor '{name}'"):
                choose(name)

    @invariant()
    def tables_agree(self):
        """Every table of the registry is that of the model, names, classes and order."""
        found = {
            architecture: [(one.name, one.load()) for one in table]
            for architecture, table in self.registry.architectures().items()
        }
        assert found == {architecture: list(table.items()) for architecture, table in self.by_architecture.items()}

    @rule(model=models)
    def class_agrees(self, model):
        """What is found on a class is what was put on the nearest of its bases."""
        found = [(name, one.load()) for name, one in self.registry.of_class(model).items()]
        assert found == list(self.expected_on(model).items())


TestRegistryMachine = RegistryMachine.TestCase
