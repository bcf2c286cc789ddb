"""``vllm-mmout doctor`` on a vLLM that differs from all that were tested."""

from __future__ import annotations

import pytest

from vllm_mmout.commands import doctor
from vllm_mmout.engine.hooks import hook_table
from vllm_mmout.engine.hooks.compat import TESTED_RELEASES
from vllm_mmout.engine.hooks.hook import Hook

pytestmark = pytest.mark.engine


@pytest.fixture
def another(monkeypatch):
    """A release without two of the names that are wrapped."""
    monkeypatch.setattr("vllm.__version__", "9.9.0")
    lacking = [
        Hook("vllm.plugins", name, (), "load", "0.30", "never", lambda call: call) for name in ("no_such", "gone")
    ]
    rows = (*hook_table.hooks(), *lacking)
    monkeypatch.setattr(hook_table, "hooks", lambda: rows)


def test_each_missing_name_has_a_line(another):
    """After the releases that were tested, one of which is to be installed."""
    fine, finding = doctor._hooks()
    first, *lines = finding.splitlines()
    assert not fine
    assert first == (
        "hooks: vLLM 9.9.0 lacks 2 names, and nothing is installed; this version is tested with"
        f" {', '.join(TESTED_RELEASES)}: install one of these, or a newer vllm_mmout"
    )
    assert [line.split()[0] for line in lines] == ["vllm.plugins.no_such", "vllm.plugins.gone"]


def test_nothing_is_wrapped(another):
    """Hooks go in together or not at all."""
    assert doctor._runner()[1].endswith("wrapped: nothing")


def test_the_engine_is_untested(another):
    """It may work, so that this alone is no failure."""
    fine, finding = doctor._engine()
    assert fine
    assert "vLLM 9.9.0 for " in finding
    assert finding.endswith(f"untested, this version is tested with {', '.join(TESTED_RELEASES)}")
