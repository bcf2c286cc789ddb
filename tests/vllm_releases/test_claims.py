"""What vllm_mmout touches in vLLM is there in every release that it claims; where none is claimed, drift is listed."""

from __future__ import annotations

import configparser
import importlib
import re
from pathlib import Path

import pytest
import vllm
from engine_sources import ENGINES
from packaging.requirements import Requirement

import vllm_mmout
from vllm_mmout.engine.hooks import install as hooks
from vllm_mmout.engine.hooks.added_names import ATTRIBUTES
from vllm_mmout.engine.hooks.hook_table import hooks as rows_of_all
from vllm_mmout.engine.hooks.hook_table import names
from vllm_mmout.errors import HookError
from vllm_mmout.private_names import faults

pytestmark = pytest.mark.engine

PACKAGE = Path(vllm_mmout.__file__).parent
HOOKS = rows_of_all()
TARGETS = frozenset(row.target for row in (*HOOKS, *ATTRIBUTES))
BEYOND: dict[str, frozenset[str]] = {"0.30.0": frozenset(), "0.33.0": frozenset()}
"""Releases that the extra does not install: the targets of the hook table, and the names we import, that drifted."""


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
    """Of each minor version that pip may install there is a release under test, and the others are listed."""
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


def test_the_names_we_rely_on_exist():
    """Every further name of the table, which is every name that the package imports from vLLM, is there."""
    missing = {fault.split()[0] for fault in faults(names())}
    assert missing == expected_drift() - TARGETS


ABOUT_VLLM = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if re.search(r"^ *(from|import) vllm\b", file.read_text(), re.MULTILINE)
]
"""Files that import something of it."""


@pytest.mark.parametrize("file", ABOUT_VLLM, ids=lambda file: file.stem)
def test_our_modules_load(file):
    """Every module of the package that is about vLLM can be imported."""
    importlib.import_module(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))


def test_chat_without_a_tokenizer_is_refused_as_vllm_does():
    """A model without a tokenizer refuses chats with the error that vLLM's own renderer raises."""
    from vllm.renderers import hf

    from vllm_mmout.engine.hooks.renderer import NoChat

    with pytest.raises(hf.ChatTemplateResolutionError, match="no tokenizer"):
        NoChat.render_messages(None, [])
