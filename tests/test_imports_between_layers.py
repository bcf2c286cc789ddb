"""The house as its imports draw it: layers upon each other, wings above all of them, and no circles.

Imports inside functions count, imports for types alone, and strings that name a module or an object of one.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import vllm_mmout

PACKAGE = Path(vllm_mmout.__file__).parent
MODULES = {
    ".".join(("vllm_mmout", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): file
    for file in PACKAGE.rglob("*.py")
}

LAYERS = (
    {"private_names", "errors", "importing", "lazy", "log", "messages", "retries", "stopwatch", "version"},
    {"wing"},
    {"geo", "params", "option"},
    {"outputs"},
    {"processors", "registry"},
    {"models"},
    {"engine"},
    {"serving"},
    {"cli", "commands", "testing"},
    {"wings"},
)
"""The lowest first; what stands together may import each other."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

NAMED = re.compile(r"(vllm_mmout(?:\.\w+)+)(?::\w+)?")
"""A string that names a module, or an object as "module:name"."""

UPWARDS = {
    # The entry-point group of wings has the name of the folder that holds this package's own.
    ("wing", "wings"),
}
"""Strings that point up, by module and layer."""


class Imports(ast.NodeVisitor):
    """The modules of this package that one of them imports."""

    def __init__(self):
        self.found = set()

    def generic_visit(self, node):
        """Look at statements alone: no expression imports anything."""
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                self.visit(child)

    def visit_Import(self, node):
        self.found |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node):
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            self.found.add(inner if inner in MODULES else node.module)


@cache
def parsed(file):
    """The syntax tree of a module."""
    return ast.parse(file.read_text())


def named(file):
    """Return the modules that strings of a file name, without the docstrings that mention one among other words."""
    texts = [node.value for node in ast.walk(parsed(file)) if isinstance(node, ast.Constant)]
    matches = [NAMED.fullmatch(text) for text in texts if isinstance(text, str)]
    return {match[1] for match in matches if match and match[1] in MODULES}


@cache
def graph():
    """Module -> the modules that it imports, without the package itself, whose names are lazy."""
    arrows = {}
    for module, file in MODULES.items():
        visitor = Imports()
        visitor.visit(parsed(file))
        arrows[module] = (visitor.found & MODULES.keys()) - {module, "vllm_mmout"}
    return arrows


def layer(module):
    """Of "vllm_mmout.geo.raster" it is "geo"."""
    return module.split(".")[1]


def wing(module):
    """Of "vllm_mmout.wings.jobs.submit" it is "jobs", of what is no wing's ""."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["wings"] and len(parts) > 2 else ""


def inner():
    """The arrows between modules, but for the package's own list of public names."""
    return [
        (one, other) for one, others in graph().items() if one != "vllm_mmout" for other in others | named(MODULES[one])
    ]


def test_every_module_is_of_a_layer():
    """A new folder or module at the top has its place in the table above."""
    assert {layer(module) for module in MODULES if module != "vllm_mmout"} == set(RANK)


def test_no_arrow_points_up():
    """Modules import of their own layer and of those below; what does not is listed, with its reason."""
    found = {
        (one.removeprefix("vllm_mmout."), layer(other))
        for one, other in inner()
        if RANK[layer(other)] > RANK[layer(one)]
    }
    assert found == UPWARDS


def test_files_stay_short():
    """One concept a file, of 300 lines at most."""
    assert {module for module, file in MODULES.items() if len(file.read_text().splitlines()) > 300} == set()


def test_the_library_of_rasters_has_one_door():
    """The layers above import names of `vllm_mmout.geo`, and none of its modules."""
    past = [(one, other) for one, other in inner() if layer(one) != "geo" and other.startswith("vllm_mmout.geo.")]
    assert past == []


def test_wings_do_not_know_each_other():
    """Each can be taken off without the others."""
    assert [(one, other) for one, other in inner() if wing(one) and wing(other) and wing(one) != wing(other)] == []


def test_there_are_no_circles():
    """Modules can be read one after the other, those that they import for types included."""
    TopologicalSorter(graph()).prepare()  # raises CycleError, which names the modules of one


@pytest.mark.parametrize("module", ["vllm_mmout.outputs", "vllm_mmout.processors", "vllm_mmout.geo"])
def test_what_needs_no_engine_asks_for_none(module):
    """The layers below the models import no vLLM when they are imported."""
    files = [file for name, file in MODULES.items() if name == module or name.startswith(f"{module}.")]
    assert len(files) > 3
    for file in files:
        top = [node for node in parsed(file).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {getattr(node, "module", None) or node.names[0].name for node in top}
        assert not {name for name in names if name.split(".")[0] in {"vllm", "torch"}}, file


def test_objects_change_their_class_in_one_place():
    """Nobody but ``rebase`` swaps classes."""
    swaps = {
        module
        for module, file in MODULES.items()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Attribute) and target.attr == "__class__" for target in node.targets)
    }
    assert swaps == {"vllm_mmout.engine.binding"}
