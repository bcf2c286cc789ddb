"""Which output processors serve a model: the engine argument, then config.json, then the registries."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.registry import OutputRegistry
from vllm_mmout.registry.resolve import resolve


class Mask(OutputProcessor):
    pass


class Edges(OutputProcessor):
    name = "edges"


class Depth(OutputProcessor):
    pass


class Sized(OutputProcessor):
    def __init__(self, *, size=2):
        self.size = size


class Tensor(OutputProcessor):
    pass


class FloodNet:
    pass


HERE = __name__


@pytest.fixture
def registry(monkeypatch):
    """A fresh registry where "tensor" and "segmentation" are all that is installed."""
    monkeypatch.setattr("vllm_mmout.registry.processor_names.entry_points", lambda group: [])
    monkeypatch.setattr("vllm_mmout.registry.processor_names.wings", lambda: ())
    monkeypatch.setattr(
        "vllm_mmout.registry.processor_names.BUILT_IN", {"tensor": f"{HERE}:Tensor", "segmentation": f"{HERE}:Mask"}
    )
    return OutputRegistry()


def net(*processors, **named):
    """A model class with these processors, the first the default."""
    made = type("Net", (), {})
    for name, processor in [*((None, processor) for processor in processors), *named.items()]:
        OutputRegistry().register_output_processor(processor, name=name)(made)
    return made


def choose(registry, engine=None, config=None, model=FloodNet, architectures=("FloodNet",)):
    """The choice for a model of class ``model``."""
    return resolve(
        registry, engine_table=engine, config=config or {}, architectures=architectures, model_class=lambda: model
    )


def never():
    """Stands for the model's class where it must not be asked for."""
    raise AssertionError("the model's class was looked at")


def test_text_model_has_no_choice(registry):
    """A model that nobody registered and no config names has no processor."""
    assert choose(registry) is None
    assert choose(registry, engine={}, config={"mmout": {}, "model_type": "llama"}, architectures=()) is None
    assert choose(registry, model=None) is None


def test_decorator_serves(registry):
    """Without any config the processors on the class serve, the first being the default."""
    choice = choose(registry, model=net(Mask, e=Edges))
    assert list(choice.processors.items()) == [("Mask", Mask), ("e", Edges)]
    assert choice.default == "Mask"
    assert choice.chosen_by == "@register_output_processor on Net"


def test_architecture_table_wins_over_the_decorator(registry):
    """What is registered for the architecture serves instead of what is on the class, which is not even looked at."""
    registry.register("FloodNet", f"{HERE}:Edges", name="e")
    choice = resolve(registry, engine_table=None, config={}, architectures=["Other", "FloodNet"], model_class=never)
    assert choice.processors == {"e": Edges}
    assert choice.chosen_by == "register('FloodNet')"


@pytest.mark.parametrize("config", [{"output_processor": "edges"}, {"mmout": {"output_processor": "edges"}}])
def test_config_wins_over_the_registries(registry, config):
    """A name in config.json, at its top or in its table, wins over decorator and architecture table."""
    registry.register("FloodNet", Depth)
    choice = choose(registry, config=config, model=net(Mask, Edges))
    assert choice.processors == {"edges": Edges}
    assert choice.chosen_by == "config.json"


def test_engine_argument_wins_over_config(registry):
    """A name in the engine argument wins over everything."""
    choice = choose(
        registry, engine={"output_processor": "Depth"}, config={"output_processor": "edges"}, model=net(Edges, Depth)
    )
    assert choice.processors == {"Depth": Depth}
    assert choice.chosen_by == 'additional_config["mmout"]'


def test_null_counts_as_not_set(registry):
    """A null, as a JSON writer leaves it, decides nothing."""
    config = {"output_processor": None, "mmout": None}
    assert choose(registry, engine={"output_processor": None}, config=config, model=net(Mask)).default == "Mask"


@pytest.mark.parametrize(
    ("engine", "config"),
    [
        ({"output_processor": "none"}, {}),
        ({"output_processor": "none"}, {"output_processor": "edges", "mmout": {"threshold": 1}}),
        (None, {"output_processor": "none"}),
        (None, {"mmout": {"output_processor": "none", "model": "m:C"}}),
    ],
)
def test_none_switches_off(registry, engine, config):
    """The name "none" makes the model one without processor, whatever is registered or set further down."""
    registry.register("FloodNet", Depth)
    assert choose(registry, engine=engine, config=config, model=net(Mask)) is None


def test_names_are_looked_up_among_the_models_own_first(registry):
    """A model's own processor hides an installed one of the same name; of two own ones the architecture's counts."""
    ask = {"output_processor": "segmentation"}
    assert choose(registry, engine=ask).processors == {"segmentation": Mask}
    assert choose(registry, engine=ask, model=net(segmentation=Edges)).processors == {"segmentation": Edges}
    registry.register("FloodNet", Depth, name="segmentation")
    assert choose(registry, engine=ask, model=net(segmentation=Edges)).processors == {"segmentation": Depth}


def test_path_is_imported_without_looking_at_the_model(registry):
    """A path needs no registration; requests call it by the name that its class has."""
    choice = resolve(
        registry,
        engine_table={"output_processor": f"{HERE}:Edges"},
        config={},
        architectures=["FloodNet"],
        model_class=never,
    )
    assert choice.processors == {"edges": Edges}


def test_list_of_names(registry):
    """A list gives several processors, the first the default; paths and names may be mixed."""
    ask = {"output_processor": ["tensor", f"{HERE}:Depth", "segmentation"]}
    choice = choose(registry, config=ask)
    assert list(choice.processors.items()) == [("tensor", Tensor), ("Depth", Depth), ("segmentation", Mask)]


def test_table_of_aliases(registry):
    """A table says what requests call each; one class may serve under two names."""
    ask = {"output_processor": {"mask": "segmentation", "raw": f"{HERE}:Tensor", "again": "segmentation"}}
    choice = choose(registry, engine=ask)
    assert list(choice.processors.items()) == [("mask", Mask), ("raw", Tensor), ("again", Mask)]


def test_options_of_one_processor_alone(registry):
    """A table in place of a name has options of its own, which win over those beside it."""
    own = {"output_processor": f"{HERE}:Sized", "size": 3}
    ask = {"output_processor": {"large": own, "small": f"{HERE}:Sized"}, "size": 1}
    assert choose(registry, config={"mmout": ask}).options == {"large": {"size": 3}, "small": {"size": 1}}
    own["colour"] = 2
    with pytest.raises(OptionError, match=r"unknown option 'colour' in output_processor\['large'\] in config.json"):
        choose(registry, config={"mmout": ask})
    with pytest.raises(OptionError, match="is text, got None"):
        choose(registry, engine={"output_processor": {"large": {"size": 3}}})


@pytest.mark.parametrize("twice", [["tensor", "tensor"], ["edges", f"{HERE}:Edges"]])
def test_one_name_twice(registry, twice):
    """Two processors of one name are refused, with the way out."""
    with pytest.raises(OptionError, match=r"names '(tensor|edges)' twice; give each a name of its own: {\"alias\""):
        choose(registry, engine={"output_processor": twice}, model=net(Edges))


def test_unknown_name_lists_the_known_ones(registry):
    """An unknown name is an error that says where it stands, what it may be a slip of, and what is known."""
    with pytest.raises(RegistrationError) as caught:
        choose(registry, config={"output_processor": "segmentaton"}, model=net(Edges))
    assert str(caught.value) == (
        "unknown output processor 'segmentaton' in config.json; did you mean 'segmentation'? (of this model: edges;"
        ' installed: tensor, segmentation); or write its path "pkg.mod:Class"'
    )
    with pytest.raises(
        RegistrationError, match=r"unknown output processor 'xyz' in additional_config.*\(of this model: no"
    ):
        choose(registry, engine={"output_processor": "xyz"})


def test_path_that_cannot_be_imported(registry):
    """A path that leads nowhere is an error at resolution, so before any process is started."""
    with pytest.raises(RegistrationError, match="cannot import output processor 'no_such_module_z:Mask'"):
        choose(registry, engine={"output_processor": "no_such_module_z:Mask"})


@pytest.mark.parametrize("value", [5, True, [], {}, "", [5], {"a": None}, [None]])
def test_malformed_value(registry, value):
    """What is neither a name nor a list nor a table of names is refused with its value."""
    with pytest.raises(OptionError, match=r"'output_processor' in additional_config\[\"mmout\"\].*, got "):
        choose(registry, engine={"output_processor": value})


@pytest.mark.parametrize("value", [["tensor", "none"], {"a": "none"}])
def test_none_among_others(registry, value):
    """The name "none" beside others is refused: it would say two things."""
    with pytest.raises(OptionError, match="has 'none' among others; give it alone"):
        choose(registry, engine={"output_processor": value})


@pytest.mark.parametrize("alias", ["", "a b", "none", 3])
def test_unusable_alias(registry, alias):
    """An alias that requests could not write is refused."""
    with pytest.raises(OptionError, match="cannot be an alias; use letters"):
        choose(registry, engine={"output_processor": {alias: "tensor"}})


def test_two_values_in_one_config(registry):
    """A config.json that says two different things is refused; the same thing twice is not."""
    config = {"output_processor": "tensor", "mmout": {"output_processor": "segmentation"}}
    with pytest.raises(
        OptionError, match="two values of 'output_processor': 'tensor', and 'segmentation' in \"mmout\""
    ):
        choose(registry, config=config)
    config["mmout"]["output_processor"] = "tensor"
    assert choose(registry, config=config).default == "tensor"


@pytest.mark.parametrize("table", ["segmentation", ["segmentation"], 5, True])
def test_table_that_is_none(registry, table):
    """Anything but a table under "mmout" is refused, with the form that is meant."""
    with pytest.raises(OptionError, match=r'additional_config\["mmout"\] must be a table such as {"output_processor"'):
        choose(registry, engine=table)
    with pytest.raises(OptionError, match=r'the "mmout" table of config\.json must be a table'):
        choose(registry, config={"mmout": table})
