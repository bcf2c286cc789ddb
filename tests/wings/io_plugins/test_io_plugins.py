"""IO Processor plugins of vLLM's that are installed, named as output processors."""

from __future__ import annotations

import io_plugins_for_tests
import pytest

from vllm_mmout import cli
from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.registry import OutputRegistry
from vllm_mmout.registry.registration import default_name, import_processor, make_registration
from vllm_mmout.registry.resolve import resolve


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    """A package with plugins, of which nothing can be imported: nobody does."""
    io_plugins_for_tests.install(tmp_path)
    (tmp_path / "io_plugins_code.py").unlink()
    monkeypatch.syspath_prepend(tmp_path)


def chosen(wanted, **options):
    """The choice of an engine argument, for a model without processors of its own."""
    return resolve(
        OutputRegistry(),
        engine_table={"output_processor": wanted, **options},
        config={},
        architectures=["Net"],
        model_class=lambda: None,
    )


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("io_plugin:new", {"io_plugin:new": "new"}),
        (
            ["tensor", "io_plugin:new", "io_plugin:key-words"],
            {"io_plugin:new": "new", "io_plugin:key-words": "key-words"},
        ),
        ({"mask": "io_plugin:tiff", "plain": "tensor"}, {"mask": "tiff"}),
        ({"one": "io_plugin:new", "two": "io_plugin:new"}, {"one": "new", "two": "new"}),
    ],
)
def test_plugins_are_named_beside_ordinary_processors(wanted, names):
    """By their names, in lists and by aliases; the plugin is found in its class."""
    choice = chosen(wanted)
    found = {name: kind.plugin for name, kind in choice.processors.items() if hasattr(kind, "plugin")}
    assert found == names
    assert list(choice.processors) == (list(wanted) if not isinstance(wanted, str) else [wanted])


def test_what_stands_for_a_plugin_is_made_without_it():
    """A worker makes it, where the plugin need not be."""
    choice = chosen(["io_plugin:new", "tensor"])
    made = choice.create({})
    assert [type(processor).__name__ for processor in made.values()] == ["IOPluginProcessor[new]", "TensorProcessor"]
    assert choice.pick("io_plugin:new") == ("io_plugin:new",)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("io_plugin:knew", ["'knew'", "did you mean 'new'?", "tiff", "paths", "install its package"]),
        ("io_plugin:", ["''", "installed: new, tiff"]),
        (["tensor", "io_plugin:absent"], ["'absent'", "installed: new"]),
        ("io-plugin:new", ["unknown output processor 'io-plugin:new'", "did you mean 'io_plugin:new'?"]),
    ],
)
def test_an_unknown_plugin_is_an_error_that_lists_the_installed_ones(wanted, says):
    """A slip is recognised."""
    with pytest.raises(RegistrationError) as caught:
        chosen(wanted)
    assert [part for part in says if part not in str(caught.value)] == []


def test_plugins_take_no_options():
    """An option of nobody's is refused."""
    with pytest.raises(OptionError, match=r"'plugin'.*of io_plugin:new: \(no options\)"):
        chosen("io_plugin:new", plugin=3)


def test_two_packages_with_one_name(tmp_path, monkeypatch):
    """Nobody knows which is meant: both are named. One package that is found twice is one."""
    other = tmp_path / "other" / "others-1.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    points = "[vllm.io_processor_plugins]\nnew = others:new\ntiff = io_plugins_code:tiff\n"
    (other / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(other.parent)
    with pytest.raises(RegistrationError, match="others:new of package others, io_plugins_code:new of package io-plug"):
        chosen("io_plugin:new")
    assert list(chosen("io_plugin:tiff").processors) == ["io_plugin:tiff"]


def test_the_plugin_of_this_package_is_none_of_them(tmp_path, monkeypatch):
    """It answers through output processors: as one it would answer through itself."""
    ours = tmp_path / "ours" / "vllm_mmout_too-1.0.dist-info"
    ours.mkdir(parents=True)
    (ours / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-mmout-too\nVersion: 1.0\n")
    (ours / "entry_points.txt").write_text(
        "[vllm.io_processor_plugins]\nmmout = vllm_mmout.wings.io_plugins.own.mmout_plugin:register\n"
    )
    monkeypatch.syspath_prepend(ours.parent)
    with pytest.raises(RegistrationError, match="no IO Processor plugin 'mmout'"):
        chosen("io_plugin:mmout")


def test_a_model_can_be_registered_with_a_plugin():
    """For an architecture or on a class; it is called by its whole name."""
    registry = OutputRegistry()
    registry.register("Net", "io_plugin:new")
    choice = resolve(
        registry, engine_table=None, config={}, architectures=["Net"], model_class=lambda: pytest.fail("not asked")
    )
    assert {name: kind.plugin for name, kind in choice.processors.items()} == {"io_plugin:new": "new"}
    assert default_name("io_plugin:my-own") == "io_plugin:my-own"
    assert import_processor("io_plugin:new") is import_processor("io_plugin:new")


def test_no_other_processor_can_take_such_a_name():
    """The prefix says what it is."""

    class Mask(OutputProcessor):
        pass

    for name in ("io_plugin:new", "io_plugin:"):
        with pytest.raises(RegistrationError, match="cannot be the name"):
            make_registration(Mask, name, "test")


def test_the_command_lists_them(capsys, monkeypatch):
    """With where each comes from; none is imported."""
    monkeypatch.setattr("vllm_mmout.registry.MULTIMODAL_OUTPUT_REGISTRY", OutputRegistry())
    assert cli.main(["processors"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert list(rows)[:3] == ["name", "tensor", "image"]
    assert {f"io_plugin:{name}" for name in io_plugins_for_tests.POINTS} <= set(rows)
    assert "io_plugins_code:new of package io-plugins" in rows["io_plugin:new"]
