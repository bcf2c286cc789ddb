"""What vllm_mmout touches in vLLM is there in every release that it claims; where none is claimed, drift is listed."""

from __future__ import annotations

import ast
import configparser
import importlib
from pathlib import Path

import pytest
import vllm
from engine_sources import ENGINES
from packaging.requirements import Requirement

import vllm_mmout
from vllm_mmout.engine import hooks
from vllm_mmout.engine.hook_table import ATTRIBUTES, HOOKS
from vllm_mmout.errors import HookError

pytestmark = pytest.mark.engine

PACKAGE = Path(vllm_mmout.__file__).parent
TARGETS = frozenset(row.target for row in (*HOOKS, *ATTRIBUTES))
BEYOND = {"0.33.0": frozenset()}
"""Releases that no claim covers: the targets of the hook table, and the names we import, that have drifted there."""


def extra(name):
    """The requirement that an extra of ``setup.cfg`` installs."""
    config = configparser.RawConfigParser()
    config.read(PACKAGE.parent / "setup.cfg")
    return Requirement(config["options.extras_require"][name].strip())


CLAIM = extra("gpu").specifier


def expected_drift():
    """What may be missing in this release."""
    release = vllm.__version__.split("+")[0]
    return frozenset() if release in CLAIM else BEYOND[release]


def test_every_claimed_release_is_tested():
    """Of each minor version that pip may install there is a release under test, and none that nobody knows of."""
    tested = {engine.version for engine in ENGINES}
    claimed = {f"0.{minor}" for minor in range(1000) if f"0.{minor}.0" in CLAIM}
    assert claimed
    assert {release.rpartition(".")[0] for release in tested if release in CLAIM} == claimed
    assert {release for release in tested if release not in CLAIM} == set(BEYOND)
    assert str(extra("cpu")) in {f"{engine.distribution}=={engine.version}" for engine in ENGINES}


def drifted(row):
    try:
        hooks.verify([row] if row in HOOKS else [], [row] if row in ATTRIBUTES else [])
    except HookError:
        return True
    return False


def test_the_hook_table_holds():
    """Every row of the table is there as we use it; the error of one that is not names it."""
    if not expected_drift():
        hooks.verify()
    assert {row.target for row in (*HOOKS, *ATTRIBUTES) if drifted(row)} == expected_drift() & TARGETS


class Imports(ast.NodeVisitor):
    """The names of vLLM that a module imports when it runs, and may not do without."""

    def __init__(self):
        self.names = set()

    def visit_If(self, node):
        for part in node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else [*node.body, *node.orelse]:
            self.visit(part)

    def visit_Try(self, node):
        """What is only tried has an alternative."""
        if not any(
            handler.type is not None and "ImportError" in ast.unparse(handler.type) for handler in node.handlers
        ):
            self.generic_visit(node)

    def visit_Import(self, node):
        self.names |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "vllm"}

    def visit_ImportFrom(self, node):
        if node.module.split(".")[0] == "vllm":
            self.names |= {(node.module, alias.name) for alias in node.names}


def imports_of(file):
    """Module and name of each."""
    imports = Imports()
    imports.visit(ast.parse(file.read_text()))
    return imports.names


IMPORTS = {file: imports_of(file) for file in sorted(PACKAGE.rglob("*.py"))}
"""By file, none for those that are not about vLLM."""


def is_there(module, name):
    try:
        found = importlib.import_module(module)
        if name and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def test_the_names_we_import_exist():
    """Every name that the package imports from vLLM, at its start or inside a function, is there."""
    names = set().union(*IMPORTS.values())
    assert len(names) > 20
    missing = {f"{module}.{name}".strip(".") for module, name in names if not is_there(module, name)}
    assert missing == expected_drift() - TARGETS


@pytest.mark.parametrize("file", [file for file, names in IMPORTS.items() if names], ids=lambda file: file.stem)
def test_our_modules_load(file):
    """Every module of the package that is about vLLM can be imported."""
    importlib.import_module(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))


def test_chat_without_a_tokenizer_is_refused_as_vllm_does():
    """A model without a tokenizer refuses chats with the error that vLLM's own renderer raises."""
    from vllm.renderers import hf

    from vllm_mmout.engine.renderer import NoChat

    with pytest.raises(hf.ChatTemplateResolutionError, match="no tokenizer"):
        NoChat().render_messages([])
