"""What is wrong with a plugin is said when an engine starts; before any process of it, where that can be known."""

from __future__ import annotations

import multiprocessing.process

import io_plugins_for_tests
import psutil
import pytest
from model_folders import ENGINE, vllm_starts
from processes import descendants

from vllm_mmout.errors import MMOutError, RegistrationError

pytestmark = pytest.mark.engine


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """The installed plugins."""
    monkeypatch.syspath_prepend(io_plugins_for_tests.install(tmp_path))


@pytest.fixture(scope="module")
def inspected(water_index):
    """A model's class is looked at by vLLM in a process of its own, once: here, before anything is counted."""
    from vllm.engine.arg_utils import EngineArgs

    EngineArgs(model=water_index).create_engine_config()


@pytest.fixture
def no_process(inspected, monkeypatch):
    """Fails where a process is started."""

    def start(self):
        pytest.fail(f"{self} was started")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start)


def start(model, wanted, **arguments):
    """Start an engine in processes of its own."""
    from vllm import LLM

    with vllm_starts("1"):
        return LLM(model, additional_config={"mmout": {"output_processor": wanted}}, **ENGINE, **arguments)


@pytest.mark.usefixtures("plugins", "no_process")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent", ["no IO Processor plugin 'absent'", "installed: new, tiff"]),
        ("missing", ["'missing'", "io_plugins_code:missing of package io-plugins", "NoSuchClass"]),
        ("nothing", ["'nothing'", "must name a class that can be used here"]),
    ],
)
def test_a_plugin_that_cannot_be_imported_starts_no_process(water_index, name, says):
    """Nor does one that is not there, or says that it is of no use here."""
    with pytest.raises(RegistrationError) as caught:
        start(water_index, ["segmentation", f"io_plugin:{name}"])
    assert [part for part in says if part not in str(caught.value)] == []


@pytest.mark.usefixtures("plugins", "no_process")
def test_a_plugin_that_vllm_is_told_to_leave_out(water_index, monkeypatch):
    """``VLLM_PLUGINS`` holds here too."""
    monkeypatch.setenv("VLLM_PLUGINS", "vllm_mmout,tiff")
    with pytest.raises(MMOutError, match="VLLM_PLUGINS allows only vllm_mmout, tiff"):
        start(water_index, "io_plugin:new")


@pytest.mark.slow
@pytest.mark.usefixtures("plugins")
def test_a_plugin_that_cannot_be_made_leaves_no_engine(water_index):
    """Its constructor needs the engine; that ends with the error."""
    before = set(descendants())
    with pytest.raises(
        RegistrationError, match=r"'broken' cannot be created for this model: KeyError: 'pretrained_cfg'"
    ):
        start(water_index, "io_plugin:broken")
    left = set(descendants()) - before
    _, alive = psutil.wait_procs(left, timeout=30)
    assert not [process for process in alive if "EngineCore" in " ".join([process.name(), *process.cmdline()])]
