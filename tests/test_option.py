"""One declaration of an option is how it is read, checked, described and made a flag."""

from __future__ import annotations

import argparse
import pickle
from typing import Annotated, Literal

import msgspec
import pytest

from vllm_mmout.commands import request_flags
from vllm_mmout.errors import OptionError
from vllm_mmout.messages import shown, unknown
from vllm_mmout.option import options_of, said
from vllm_mmout.params import LOCAL_ONLY, OPTIONS, OutputParams


class Asked(msgspec.Struct):
    """Options of every kind of row."""

    zoom: Annotated[int | None, said("how near. The further sentences are for who reads on.", ge=1, le=22)] = None
    margin: Annotated[float, said("what is left around.", ge=0, unit="metres")] = 0.0
    layers: Annotated[tuple[str, ...] | None, said("what is drawn.")] = None
    style: Annotated[Literal["plain", "dark"], said("how it is drawn.")] = "plain"
    pages: Annotated[Literal[1], said("of the answer.", why="it has one")] = 1
    paper: Annotated[str | None, said("its format.", choices=("a4", "a3"), spelling=str.lower, max_length=9)] = None


ASKED = options_of(Asked)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("zoom", " 3 ", 3), ("margin", "2.5", 2.5), ("layers", "a,b", ("a", "b")), ("style", "dark", "dark"),
     ("pages", "1", 1), ("paper", "A4", "a4"), ("zoom", "", None)],
)  # fmt: skip
def test_a_text_is_read_by_the_type(name, text, value):
    """Of a form or a command line; an empty one says nothing."""
    option = ASKED[name]
    found = option.from_text(text)
    assert (found if found is None else option.checked(found)) == value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("zoom", 0, "zoom must be 1 to 22, got 0"),
        ("margin", -1.0, "margin must be 0 or more metres, got -1.0"),
        ("margin", float("nan"), "margin must be 0 or more metres, got nan"),
        ("style", "loud", "style must be one of plain, dark, got 'loud'"),
        ("pages", 2, "pages must be 1, got 2: it has one"),
        ("paper", "A5", "paper must be one of a4, a3, got 'a5'"),
    ],
)
def test_bounds_and_choices_are_those_of_the_row(name, value, message):
    """The error names the option."""
    with pytest.raises(OptionError) as caught:
        ASKED[name].checked(value)
    assert (str(caught.value), caught.value.param) == (message, name)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("zoom", "3", "zoom must be whole number, got '3'"),
        ("layers", [3], "layers must be a list of texts, got [3]"),
        ("paper", "x" * 10, "paper has 10 characters, and may have 9; shorten it"),
        ("margin", None, "margin must be number, got None"),
    ],
)
def test_json_has_types_of_its_own(name, value, message):
    """Numbers in texts are none."""
    with pytest.raises(OptionError, match=r"must be|characters") as caught:
        ASKED[name].from_json(value)
    assert str(caught.value) == message


def test_the_schema_has_what_the_row_says():
    """Types, bounds and choices, without null: who has nothing to say leaves a field out."""
    assert ASKED["zoom"].schema == {
        "description": "how near. The further sentences are for who reads on.",
        "type": "integer",
        "minimum": 1,
        "maximum": 22,
    }
    assert ASKED["style"].schema["enum"] == ["dark", "plain"]
    assert ASKED["layers"].schema["items"] == {"type": "string"}


def test_a_flag_is_made_of_the_row(capsys):
    """Its help is the first sentence, its value is read as that of a form."""
    parser = argparse.ArgumentParser(prog="test")
    for name, option in ASKED.items():
        parser.add_argument(request_flags.flag(name), **request_flags.argparse_settings(option))
    found = parser.parse_args(["--layers", "a,b", "--zoom", "4"])
    assert (found.layers, found.zoom, found.style) == (("a", "b"), 4, "plain")
    with pytest.raises(SystemExit):
        parser.parse_args(["--zoom", "near"])
    assert "zoom must be whole number, got 'near'" in capsys.readouterr().err
    assert "how near\n" in parser.format_help()


def test_every_option_of_requests_is_a_flag():
    """But those of this process alone, and that of streams."""
    assert request_flags.OPTIONS.keys() == OPTIONS.keys() - {*LOCAL_ONLY, "partial_images"}
    assert all(option.meta.description for option in OPTIONS.values())


def test_the_docstring_lists_every_option():
    """``help(OutputParams)`` says what stands in the rows."""
    assert all(
        f"        {option.name}: {option.meta.description}" in OutputParams.__doc__ for option in OPTIONS.values()
    )


def test_only_the_engine_says_that_a_request_is_a_part():
    """Authors read it; nobody sets it, and it travels."""
    params = OutputParams(overlap=8)
    tile = params.of_part(tile=64)
    assert (params.part, tile.part, tile.tile, tile.blends) == (False, True, 64, True)
    assert OutputParams.from_mapping(tile.to_wire()) == tile
    assert not OutputParams.from_mapping(params.to_wire()).part
    with pytest.raises(TypeError):
        OutputParams(part=True)
    with pytest.raises(OptionError, match="part must be true or false, got 'x'"):
        OutputParams.from_mapping({"part": "x"})


def test_unknown_names_are_told_with_the_near_one():
    """Long values are shown by their begin."""
    error = unknown("tiel", ["tile", "overlap"], kind="field", where=" in data")
    assert str(error) == "unknown field 'tiel' in data; did you mean 'tile'? (known: tile, overlap)"
    assert len(shown(["x" * 1_000_000])) < 120


def test_options_that_were_pickled_say_the_same():
    """Those left at their default are not said, wherever the object was made."""
    for params in (OutputParams(), OutputParams(tile=512, overlap=64, blend="linear")):
        again = pickle.loads(pickle.dumps(params))  # noqa: S301 - our own
        assert again.to_wire() == params.to_wire()


def test_an_area_on_the_command_line_is_a_file_or_its_text(tmp_path):
    """The flag reads the file at once, since a server or a node of a cluster does not have it."""
    text = '{"type":"Polygon","coordinates":[[[8,47],[9,47],[9,48],[8,47]]]}'
    (tmp_path / "area.geojson").write_text(text)
    read = request_flags.OPTIONS["aoi"]["type"]
    assert read(str(tmp_path / "area.geojson")) == read(text) == text
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be read: No such file"):
        read("no-such.geojson")
