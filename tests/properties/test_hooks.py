"""Hooks come and go as a whole: vLLM is as it was afterwards, and where it has drifted nothing is touched at all."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from vllm_mmout.engine.hooks import install as hooks
from vllm_mmout.engine.hooks import plugin
from vllm_mmout.engine.hooks.added_names import ATTRIBUTES
from vllm_mmout.engine.hooks.compat import vllm_version
from vllm_mmout.engine.hooks.hook import ANYWHERE, CORE, FRONTEND, Attribute, Hook
from vllm_mmout.engine.hooks.hook_table import hooks as rows_of_all
from vllm_mmout.errors import HookError

pytestmark = pytest.mark.engine

HOOKS = rows_of_all()


def owner_of(row):
    """The class or module that a row is about."""
    owner = importlib.import_module(row.module)
    for step in row.name.split(".")[:-1]:
        owner = getattr(owner, step)
    return owner


@pytest.fixture(autouse=True)
def nothing_left():
    """A test that fails leaves no hook for the next one."""
    yield
    hooks.uninstall()


@pytest.fixture(autouse=True, scope="module")
def without_hooks():
    """Other tests of this process may have loaded the plugin: its hooks are back afterwards."""
    installed = hooks.is_installed()
    hooks.uninstall()
    yield
    hooks.uninstall()
    if installed:
        hooks.install()


def snapshot():
    """``vars()`` of every target's owner, by row."""
    return {row.target: dict(vars(owner_of(row))) for row in (*HOOKS, *ATTRIBUTES)}


def same(before, after):
    """Whether all owners hold the very same objects under the same names, in the same order."""
    assert before.keys() == after.keys()
    for target, attributes in before.items():
        now = after[target]
        assert list(attributes) == list(now), target
        assert [name for name, value in attributes.items() if now[name] is not value] == [], target


def touched(before):
    """Targets whose owner differs from the snapshot at the row's own name."""
    return {
        row.target
        for row in (*HOOKS, *ATTRIBUTES)
        if vars(owner_of(row)).get(row.name.rpartition(".")[2], hooks.ABSENT)
        is not before[row.target].get(row.name.rpartition(".")[2], hooks.ABSENT)
    }


STEPS = st.lists(
    st.one_of(
        st.just(None),
        st.tuples(
            st.permutations(HOOKS).flatmap(lambda rows: st.integers(0, len(rows)).map(lambda count: rows[:count])),
            st.lists(st.sampled_from(ATTRIBUTES), unique=True),
            st.booleans(),
            st.booleans(),
        ),
    ),
    max_size=6,
)
"""Installations of any rows in any order, and uninstallations (None) between them."""


@given(STEPS)
def test_uninstall_leaves_vllm_as_it_was(steps):
    """After any installations, of parts, repeated, in any order, uninstalling leaves every target as it was."""
    before = snapshot()
    native = [row for row in ATTRIBUTES if getattr(owner_of(row), row.name, hooks.ABSENT) is row.value()]
    expected = set()
    for step in steps:
        if step is None:
            hooks.uninstall()
            expected = set()
            same(before, snapshot())
            continue
        rows, attributes, frontend, core = step
        hooks.install(rows, attributes, frontend=frontend, core=core)
        places = {ANYWHERE} | ({FRONTEND} if frontend else set()) | ({CORE} if core else set())
        expected |= {row.target for row in rows if row.wrap and row.where in places and not hooks.is_native(row)}
        expected |= {attribute.target for attribute in attributes if attribute not in native}
        assert touched(before) == expected
        assert hooks.is_installed() == bool(expected)
    hooks.uninstall()
    same(before, snapshot())


def test_installing_twice_wraps_once():
    """A second installation changes nothing: no hook is put around a hook."""
    hooks.install()
    once = snapshot()
    hooks.install()
    same(once, snapshot())
    hooks.uninstall()


def test_the_table_says_what_and_why():
    """Every row names a target once and says why, since when and until when it is needed."""
    targets = [row.target for row in (*HOOKS, *ATTRIBUTES)]
    assert len(set(targets)) == len(targets)
    for row in HOOKS:
        assert row.why
        assert row.until
        assert re.fullmatch(r"0\.\d+", row.since)


def rename_parameter(row):
    """A stand-in that vLLM could call as before, without one of the parameters that the row uses."""
    original = vars(owner_of(row))[row.name.rpartition(".")[2]]
    parameters = ", ".join(name for name in row.parameters[:-1])
    scope = {"original": original}
    exec(f"def drifted(self, {parameters}{', ' if parameters else ''}*args, **kwargs): return original(self)", scope)  # noqa: S102
    return scope["drifted"]


FAULTS = {
    "deleted": None,
    "renamed": None,
    "no longer callable": lambda row: "a string",
    "parameter renamed": rename_parameter,
}


@st.composite
def drifts(draw):
    """A row and a fault that it can have."""
    row = draw(st.sampled_from(HOOKS))
    faults = [name for name in FAULTS if name != "parameter renamed" or row.parameters]
    return row, draw(st.sampled_from(faults))


def apply(patch, row, fault):
    """Make vLLM differ from the table in this row."""
    owner, name = owner_of(row), row.name.rpartition(".")[2]
    original = vars(owner)[name]
    if FAULTS[fault] is not None:
        patch.setattr(owner, name, FAULTS[fault](row))
        return
    patch.delattr(owner, name)
    if fault == "renamed":
        patch.setattr(owner, f"{name}_v2", original, raising=False)


@given(st.lists(drifts(), min_size=1, max_size=3, unique_by=lambda drift: drift[0].target))
def test_drifted_targets_are_refused_by_name(drifted):
    """Where targets are missing or lack a parameter, installing names each, and vLLM's version, and changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for row, fault in drifted:
            apply(patch, row, fault)
        before = snapshot()
        with pytest.raises(HookError) as caught:
            hooks.install()
        message = str(caught.value)
        assert f"vLLM {vllm_version()}" in message
        named = {row.target for row in HOOKS if f"{row.target} " in message}
        assert named == {row.target for row, _ in drifted}
        for row, fault in drifted:
            if fault == "parameter renamed":
                assert f"{row.target} has no parameter {row.parameters[-1]}" in message
        assert not hooks.is_installed()
        same(before, snapshot())
    hooks.install()
    hooks.uninstall()


@given(drifts())
def test_drift_after_a_part_was_installed(drifted):
    """What was installed before a refusal stays in place, and uninstalling still undoes it."""
    row, fault = drifted
    before = snapshot()
    hooks.install([hook for hook in HOOKS if owner_of(hook) is not owner_of(row)], ATTRIBUTES[:1])
    with pytest.MonkeyPatch.context() as patch:
        apply(patch, row, fault)
        partly = snapshot()
        with pytest.raises(HookError, match=re.escape(row.target)):
            hooks.install()
        same(partly, snapshot())
    hooks.uninstall()
    assert touched(before) == set()


@pytest.mark.parametrize(
    "row",
    [
        Hook("vllm.no_such_module", "Thing.act", (), "this test", "0.1", "never"),
        Hook("vllm.v1.engine.llm_engine", "NoSuchClass.step", (), "this test", "0.1", "never"),
        Hook("vllm.v1.engine.llm_engine", "LLMEngine.no_such_step", (), "this test", "0.1", "never"),
    ],
    ids=["module", "class", "method"],
)
def test_absent_targets_are_refused(row):
    """A module, a class or a method that does not exist is named, with what it was needed for."""
    before = snapshot()
    with pytest.raises(HookError, match=rf"{re.escape(row.target)} .*\(needed to: this test\)"):
        hooks.install([*HOOKS, row])
    same(before, snapshot())


def test_absent_module_of_an_attribute_is_refused():
    """A module that a name should be added to is verified with all others: without it nothing is changed."""
    before = snapshot()
    row = Attribute("vllm.no_such_module", "NAME", object, "this test")
    with pytest.raises(HookError, match=r"vllm\.no_such_module\.NAME .*\(needed to: this test\)"):
        hooks.install(HOOKS, [*ATTRIBUTES, row])
    same(before, snapshot())


def test_targets_without_a_signature_are_refused(monkeypatch):
    """A target that was rewritten in C, whose parameters cannot be read, is refused like any other drift."""
    row = next(row for row in HOOKS if row.name == "RequestState.make_request_output")
    monkeypatch.setattr(owner_of(row), "make_request_output", type)
    with pytest.raises(HookError, match=re.escape(row.target)):
        hooks.install()


def test_targets_that_others_wrapped_are_taken():
    """A target that another plugin has wrapped with ``functools.wraps`` is no drift, and gets its wrapper back."""
    row = next(row for row in HOOKS if row.wrap is not None and not hooks.is_native(row))
    owner, name = owner_of(row), row.name.rpartition(".")[2]
    original = getattr(owner, name)

    @functools.wraps(original)
    def theirs(*args, **kwargs):
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, theirs)
        hooks.install()
        assert getattr(owner, name) is not theirs
        hooks.uninstall()
        assert getattr(owner, name) is theirs


@given(drifts())
def test_plugin_never_raises(drifted):
    """The entry point logs the error of a drifted vLLM and returns."""
    row, fault = drifted
    errors = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vllm_mmout.models.config._unservable", None)  # other tests start engines after this one
        patch.setattr(plugin.logging.getLogger("vllm.mmout"), "error", lambda _, error: errors.append(error))
        patch.setitem(sys.modules, "vllm.engine.arg_utils", importlib.import_module("vllm.engine.arg_utils"))
        apply(patch, row, fault)
        plugin.load()
        (error,) = errors
        assert isinstance(error, HookError)
        assert row.target in str(error)
        assert not hooks.is_installed()


def test_attributes_are_our_registries():
    """With the hooks ``vllm.multimodal`` carries our two registries beside its own; without them a patched one does."""
    import vllm.multimodal

    from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, MULTIMODAL_OUTPUT_REGISTRY

    own = vllm.multimodal.MULTIMODAL_REGISTRY
    hooks.install()
    assert vllm.multimodal.MULTIMODAL_INPUT_REGISTRY is MULTIMODAL_INPUT_REGISTRY
    assert vllm.multimodal.MULTIMODAL_OUTPUT_REGISTRY is MULTIMODAL_OUTPUT_REGISTRY
    assert vllm.multimodal.MULTIMODAL_REGISTRY is own
    hooks.uninstall()
    assert hasattr(vllm.multimodal, "MULTIMODAL_OUTPUT_REGISTRY") == ("MMOUT_TEST_PATCHED" in os.environ)
