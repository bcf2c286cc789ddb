"""The hook table tells the truth: every name that is imported from vLLM has a row, and no row stands for nothing."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import vllm_mmout
from vllm_mmout.engine.hooks.hook import Hook
from vllm_mmout.engine.hooks.hook_table import CORE_HOOKS, names
from vllm_mmout.engine.hooks.vllm_names import NAMES
from vllm_mmout.private_names import Contact, faults
from vllm_mmout.wing import wings

PACKAGE = Path(vllm_mmout.__file__).parent
CORE = [file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] != "wings"]
WINGS = {wing.name: wing for wing in wings()}


class Imports(ast.NodeVisitor):
    """What a module imports of vLLM when it runs, inside functions too: pairs of module and name."""

    def __init__(self):
        self.found = set()

    def generic_visit(self, node):
        """Look at statements alone: no expression imports anything."""
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                self.visit(child)

    def visit_If(self, node):
        for part in node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else [*node.body, *node.orelse]:
            self.visit(part)

    def visit_ImportFrom(self, node):
        if node.module.split(".")[0] == "vllm":
            self.found |= {(node.module, alias.name) for alias in node.names}

    def visit_Import(self, node):
        inner = [alias.name for alias in node.names if alias.name.startswith("vllm.")]
        assert not inner, f"write `from {inner[0]} import ...`, so that each name is seen"


def imported(files):
    """By all of some files."""
    return set().union(*map(imported_by, files))


@cache
def imported_by(file):
    """By one file."""
    visitor = Imports()
    visitor.visit(ast.parse(file.read_text()))
    return visitor.found


def listed(rows):
    """The modules' own names in some rows, with the classes whose attributes are named."""
    contacts = {(row.module, name.partition(".")[0]) for row in rows if isinstance(row, Contact) for name in row.names}
    return contacts | {(row.module, row.name.partition(".")[0]) for row in rows if isinstance(row, Hook)}


def test_what_the_core_imports_of_vllm_has_a_row():
    """Whoever imports another name sees here where to write why."""
    assert imported(CORE) - listed([*CORE_HOOKS, *NAMES]) == set()


@pytest.mark.parametrize("wing", WINGS)
def test_what_a_wing_imports_of_vllm_has_a_row(wing):
    """In the wing's own rows, or among what the core relies on anyway."""
    rows = [*CORE_HOOKS, *NAMES, *(WINGS[wing].load("hooks") or ())]
    assert imported((PACKAGE / "wings" / wing).rglob("*.py")) - listed(rows) == set()


@pytest.mark.parametrize("owner", ["core", *WINGS])
def test_no_name_is_listed_that_nobody_uses(owner):
    """A row of plain names goes with the last import; attributes of objects are used without one."""
    rows = NAMES if owner == "core" else WINGS[owner].load("hooks") or ()
    files = CORE if owner == "core" else (PACKAGE / "wings" / owner).rglob("*.py")
    plain = {(row.module, name) for row in rows if isinstance(row, Contact) for name in row.names if "." not in name}
    assert plain - imported(files) == set()


@pytest.mark.engine
def test_the_names_are_there():
    """In the vLLM of this environment."""
    pytest.importorskip("vllm")
    assert list(faults(names())) == []
