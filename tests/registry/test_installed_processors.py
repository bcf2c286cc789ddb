"""Built-in processors and those that installed packages announce through entry points."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import vllm_mmout
from vllm_mmout.errors import RegistrationError
from vllm_mmout.processors.base import OutputProcessor, OwnInputsProcessor
from vllm_mmout.registry import OutputRegistry
from vllm_mmout.registry.processor_names import BUILT_IN, ENTRY_POINT_GROUP
from vllm_mmout.registry.registration import import_processor
from vllm_mmout.wing import wings


def install(folder, monkeypatch, package, points):
    """Lay the metadata of an installed package, and nothing of its code, on the path."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {path}" for name, path in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *lines]))
    monkeypatch.syspath_prepend(folder)


def test_every_processor_of_this_package_is_registered():
    """Every OutputProcessor of this package, its wings too, has a name, but for what several of them share."""
    defined = set()
    for module_info in pkgutil.walk_packages(vllm_mmout.__path__, "vllm_mmout."):
        if ".processors." in module_info.name:
            values = vars(importlib.import_module(module_info.name)).values()
            defined |= {one for one in values if isinstance(one, type) and issubclass(one, OutputProcessor)}
    paths = [*BUILT_IN.values(), *(path for wing in wings() for path in wing.output_processors.values())]
    registered = {import_processor(path) for path in paths}
    shared = {OwnInputsProcessor, *(base for processor in registered for base in processor.__mro__)}
    assert registered <= defined <= registered | shared


def test_built_in_names_are_the_ones_the_classes_define():
    """A built-in processor has one name, whether it is found by name or registered as a class."""
    registry = OutputRegistry()
    names = [*BUILT_IN, *(name for wing in wings() for name in wing.output_processors)]
    assert [registry.installed(name).load().name for name in names] == names


def test_built_in_ones_need_no_metadata(tmp_path, monkeypatch):
    """Where no package has metadata, as in a plain checkout, the built-in processors are known."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    registry = OutputRegistry()
    assert list(registry.known()) == [
        "tensor",
        "image",
        "video",
        "segmentation",
        "regression",
        "classification",
        "detection",
        "embedding",
        "embedding_grid",
        *(name for wing in wings() for name in wing.output_processors),
    ]
    assert registry.installed("tensor").path == "vllm_mmout.processors.tensor:TensorProcessor"


def test_entry_point_is_found_by_name_and_not_imported(tmp_path, monkeypatch):
    """A processor of another package is known by its name, and imported only when it is loaded."""
    install(tmp_path, monkeypatch, "acme", {"acme-flood": "acme_no_code.proc:Flood"})
    registry = OutputRegistry()
    assert registry.known()["acme-flood"] == "acme_no_code.proc:Flood (package acme)"
    with pytest.raises(RegistrationError, match="No module named 'acme_no_code'"):
        registry.installed("acme-flood").load()


def test_entry_points_are_read_at_first_use_and_once(monkeypatch):
    """A registry reads the entry points when a name is asked for, not when it is made, and keeps what it read."""
    calls = []
    monkeypatch.setattr("vllm_mmout.registry.processor_names.entry_points", lambda group: calls.append(group) or [])
    registry = OutputRegistry()
    registry.register("A", "somewhere:Proc")
    assert calls == []
    registry.installed("tensor")
    registry.known()
    assert calls == [ENTRY_POINT_GROUP]


def test_same_class_announced_twice_is_one(tmp_path, monkeypatch):
    """Our own metadata, or two of the same package on the path, announce nothing new."""
    install(tmp_path / "a", monkeypatch, "acme", {"flood": "acme.proc:Flood", "tensor": BUILT_IN["tensor"]})
    install(tmp_path / "b", monkeypatch, "acme-again", {"flood": "acme.proc:Flood"})
    registry = OutputRegistry()
    assert registry.installed("flood").path == "acme.proc:Flood"
    assert registry.known()["tensor"] == f"{BUILT_IN['tensor']} (built in)"


def test_rivals_for_one_name_are_an_error_only_when_asked_for(tmp_path, monkeypatch):
    """Two packages with one name: whoever asks for it gets both named, everything else goes on working."""
    install(tmp_path / "a", monkeypatch, "acme", {"flood": "acme.proc:Flood"})
    install(tmp_path / "b", monkeypatch, "bravo", {"flood": "bravo.proc:Flood", "image": "bravo.proc:Image"})
    registry = OutputRegistry()
    assert registry.installed("segmentation") is not None
    with pytest.raises(RegistrationError, match=r"several output processors are called 'flood'") as caught:
        registry.installed("flood")
    assert "acme.proc:Flood (package acme)" in str(caught.value)
    assert "bravo.proc:Flood (package bravo)" in str(caught.value)
    with pytest.raises(RegistrationError, match=r"ImageProcessor \(built in\), bravo\.proc:Image \(package bravo\)"):
        registry.installed("image")
    assert registry.known()["flood"].count("(package ") == 2
