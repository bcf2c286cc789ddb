"""Options of processors and settings of the engine: who gets what, and what is refused."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.registry import OutputRegistry
from vllm_mmout.registry.resolve import resolve

SETTINGS = ("decode_threads", "decode_timeout_s")


class Mask(OutputProcessor):
    def __init__(self, threshold=0.5, *, palette=None):
        self.threshold = threshold
        self.palette = palette


class Text(OutputProcessor):
    def __init__(self, *, weights, palette=None):
        self.weights = weights


class Plain(OutputProcessor):
    pass


class Greedy(OutputProcessor):
    def __init__(self, **options):
        self.options = options


class FromConfig(OutputProcessor):
    def __init__(self, *, classes):
        self.classes = classes

    @classmethod
    def from_config(cls, config, options):
        return cls(**{"classes": config["id2label"], **options})


def choose(*processors, engine=None, config=None):
    """The choice for a model with these processors, in a fresh registry."""
    registry = OutputRegistry()
    for processor in processors:
        registry.register("Net", processor)
    return resolve(
        registry,
        engine_table=engine,
        config=config or {},
        architectures=["Net"],
        model_class=lambda: None,
        settings=SETTINGS,
    )


def test_engine_options_overlay_those_of_config():
    """Options of config.json hold unless the engine argument sets them; "model" there is none."""
    config = {"mmout": {"threshold": 0.1, "palette": "blue", "model": "mod:Net"}}
    choice = choose(Mask, engine={"threshold": 0.9}, config=config)
    assert choice.options == {"Mask": {"threshold": 0.9, "palette": "blue"}}
    assert choice.settings == {}


def test_each_processor_gets_what_it_takes():
    """An option goes to every processor that takes it, and to no other."""
    choice = choose(Mask, Text, Plain, engine={"threshold": 0.9, "weights": "w", "palette": "p"})
    assert choice.options == {
        "Mask": {"threshold": 0.9, "palette": "p"},
        "Text": {"weights": "w", "palette": "p"},
        "Plain": {},
    }


def test_settings_are_not_options():
    """The engine's settings are kept apart and reach no processor, not even one that takes anything."""
    choice = choose(Greedy, engine={"decode_threads": 2, "x": 1}, config={"mmout": {"decode_timeout_s": 5}})
    assert choice.settings == {"decode_threads": 2, "decode_timeout_s": 5}
    assert choice.options == {"Greedy": {"x": 1}}


def test_inherited_constructor_counts():
    """A subclass without a constructor of its own takes what its base takes."""

    class Heir(Mask):
        pass

    assert choose(Heir, engine={"threshold": 0.2}).options == {"Heir": {"threshold": 0.2}}


def test_unknown_option_lists_the_known_ones():
    """An unknown option is an error with its place, the likely slip, and the options by who takes them."""
    with pytest.raises(OptionError) as caught:
        choose(Mask, Plain, engine={"treshold": 0.9})
    assert str(caught.value) == (
        "unknown option 'treshold' in additional_config[\"mmout\"]; did you mean 'threshold'?"
        " (known: of Mask: threshold, palette; of Plain: (no options); of the engine: decode_threads, decode_timeout_s)"
    )
    with pytest.raises(
        OptionError, match=r"unknown option 'x' in the \"mmout\" table of config\.json \(known: of Mask"
    ):
        choose(Mask, config={"mmout": {"x": 1}})
    with pytest.raises(OptionError, match="did you mean 'decode_threads'"):
        choose(Mask, engine={"decode_thread": 1})
    with pytest.raises(OptionError, match="unknown option 5 in"):
        choose(Mask, engine={5: 1})


def test_model_is_no_engine_option():
    """The key "model" belongs into config.json: in the engine argument it is unknown."""
    with pytest.raises(OptionError, match="unknown option 'model' in additional_config"):
        choose(Mask, engine={"model": "mod:Net"})


def test_missing_option_is_an_error_before_anything_starts():
    """A constructor's argument without default must be set, and the error says where."""
    with pytest.raises(OptionError, match=r"'Text' needs the option weights; set it in additional_config\[\"mmout\"\]"):
        choose(Text)


def test_own_from_config_may_find_arguments_elsewhere():
    """A processor that makes itself from config.json need not be given what it finds there."""
    choice = choose(FromConfig)
    assert choice.create({"id2label": ["a"]})["FromConfig"].classes == ["a"]
    with pytest.raises(OptionError, match=r"unknown option 'clases'.*did you mean 'classes'"):
        choose(FromConfig, engine={"clases": ["b"]})


def test_options_written_for_other_processors_are_left_out():
    """An engine argument that names another processor is not held to the options of the one in config.json."""
    config = {"output_processor": f"{__name__}:Mask", "mmout": {"threshold": 0.1, "decode_threads": 3}}
    ask = {"output_processor": f"{__name__}:Plain"}
    choice = choose(engine=ask, config=config)
    assert choice.options == {"Plain": {}}
    assert choice.settings == {"decode_threads": 3}
    with pytest.raises(OptionError, match=r"unknown option 'threshold' in additional_config"):
        choose(engine={**ask, "threshold": 0.1}, config=config)


@pytest.mark.parametrize(
    ("engine", "config", "place"),
    [
        ({"decode_threads": 2}, {}, r"additional_config\[\"mmout\"\] sets decode_threads"),
        ({"output_processor": "none", "threshold": 1}, {}, r"additional_config\[\"mmout\"\] sets threshold"),
        ({"x": 1}, {"output_processor": "none"}, r"additional_config\[\"mmout\"\] sets x"),
        (None, {"mmout": {"model": "m:C", "threshold": 1}}, r"the \"mmout\" table of config\.json sets threshold"),
    ],
)
def test_options_without_a_processor(engine, config, place):
    """Options that nobody will read are refused, with the known processors, rather than swallowed."""
    with pytest.raises(OptionError, match=rf"^{place}, but model Net has no output processor; .*\(known: tensor, "):
        choose(engine=engine, config=config)
