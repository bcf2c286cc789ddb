"""Wings: found as folders of this package and by entry points of others; what is wrong with one is said."""

from __future__ import annotations

import pytest

from vllm_mmout import cli, wing
from vllm_mmout.errors import HookError, RegistrationError
from vllm_mmout.wing import GROUP, Wing, extensions, failures, wings


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Lay a package with a wing on the path: the source of its module ``acme_wing``."""

    def install(source):
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\nacme = acme_wing:WING\n")
        (tmp_path / "acme_wing.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(__import__("sys").modules, "acme_wing", raising=False)
        wing._found.cache_clear()

    yield install
    wing._found.cache_clear()


@pytest.mark.engine
def test_a_wing_of_another_package_stands_beside_ours(install):
    """An entry point of the group adds a wing; what it names is imported when it is asked for."""
    install("from vllm_mmout.wing import Wing\nWING = Wing(name='acme', routes='acme_wing:ROUTES')\nROUTES = 'here'\n")
    *ours, theirs = wings()
    assert all(one.output_processors is not None for one in ours)
    assert theirs.name == "acme"
    assert theirs.load("routes") == "here"
    assert theirs.load("engine") is None
    assert "here" in list(extensions("routes"))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import acme_needs_this", "No module named 'acme_needs_this'"),
        ("raise ValueError('broken')", "ValueError: broken"),
        ("WING = 'acme'", "must be a vllm_mmout.wing.Wing, got 'acme'"),
        ("from vllm_mmout.wing import Wing\nWING = Wing(name='acme', colour='red')", "colour"),
    ],
)
def test_a_wing_that_cannot_be_used_is_named_and_takes_no_other_with_it(install, caplog, source, says):
    """It is logged once, and its reason kept for whoever asks."""
    install(source)
    assert "acme" not in [one.name for one in wings()]
    wings()
    (said,) = failures().values()
    assert "wing 'acme' of package acme cannot be used" in said
    assert says in said
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize(
    ("path", "says"), [("acme_missing:ROWS", "acme_missing"), ("json:nothing", "has no 'nothing'")]
)
def test_an_extension_that_cannot_be_imported_names_its_wing(path, says):
    """The error is that of who asks for the extension."""
    with pytest.raises(RegistrationError, match=f"the wing 'acme' does not work: .*{says}"):
        Wing(name="acme", hooks=path).load("hooks")


def test_a_command_that_cannot_be_imported_leaves_the_others(install, capsys):
    """The command line says so, and goes on."""
    install("from vllm_mmout.wing import Wing\nWING = Wing(name='acme', command='acme_no_command')\n")
    assert cli.main(["processors"]) == 0
    said = capsys.readouterr()
    assert "the wing 'acme' does not work: No module named 'acme_no_command'" in said.err
    assert "segmentation" in said.out


@pytest.mark.engine
def test_a_wing_that_does_not_work_takes_no_text_model_with_it(install, caplog, monkeypatch):
    """Its error is that of engines whose model has an output processor; of others it is logged."""
    pytest.importorskip("vllm")
    from vllm_mmout.engine.binding import check_extensions

    install("from vllm_mmout.wing import Wing\nWING = Wing(name='acme', engine='acme_no_engine')\n")
    monkeypatch.setattr("vllm_mmout.log.logger.propagate", True)
    check_extensions(None, bound=False)
    assert "the wing 'acme' does not work" in caplog.text
    with pytest.raises(RegistrationError, match="the wing 'acme' does not work"):
        check_extensions(None, bound=True)


@pytest.mark.engine
def test_rows_of_a_wing_that_cannot_be_imported_are_drift(install):
    """As where vLLM has drifted: our models say why they are not served, and text goes on."""
    pytest.importorskip("vllm")
    from vllm_mmout.engine.hooks import hook_table

    install("from vllm_mmout.wing import Wing\nWING = Wing(name='acme', hooks='acme_no_hooks:ROWS')\n")
    hook_table._of_wings.cache_clear()
    with pytest.raises(HookError, match="the wing 'acme' does not work"):
        hook_table.hooks()
