"""What docs/terratorch.md and docs/io-plugins.md show of TerraTorch's models runs, a small one in Prithvi's place."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from pages import all_blocks, commands

from scripts import run_script

ROOT = Path(__file__).resolve().parents[4]
PRITHVI = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11"
BANDS = "[1, 2, 3, 8, 11, 12]"


def shown(page, kind, part):
    """The one block of a page with a text."""
    (block,) = [block for block in all_blocks(kind) if block.page == page and part in block.text]
    return block


@pytest.fixture
def here(start, flood, scene, tmp_path, monkeypatch):
    """A folder with the scene, where Prithvi's name gives the engine of a small folder; gives the block to run."""
    shutil.copy(scene, tmp_path / "scene.tif")
    monkeypatch.chdir(tmp_path)

    def run(block, *processors):
        engine = start(flood, "float32", processors or None)
        monkeypatch.setattr("vllm.LLM", lambda model, **_: {PRITHVI: engine}[model])
        text = block.text.replace(BANDS, "[0, 1, 2, 3, 4, 5]")  # the scene has the six bands alone
        names = {}
        exec(compile(text, str(block), "exec"), names)  # noqa: S102 - the pages are our own
        return names

    return run


def test_python_of_terratorch(here, tmp_path):
    """The mask is written."""
    here(shown("terratorch.md", "python", PRITHVI))
    assert (tmp_path / "flood.tif").stat().st_size > 500


def test_python_of_a_foreign_plugin(here):
    """The plugin's own answer."""
    names = here(shown("io-plugins.md", "python", PRITHVI), "segmentation", "io_plugin:terratorch_segmentation")
    assert names["result"].outputs.data_format == "b64_json"


def test_config_of_the_page():
    """Its network, here with the smallest backbone, and its data module can be made."""
    from make_model import data_module_of, network_of

    text = shown("terratorch.md", "json", "pretrained_cfg").text
    for large, small in (("prithvi_eo_v2_300_tl", "prithvi_eo_v2_tiny_tl"), ("[5, 11, 17, 23]", "[2, 5, 8, 11]")):
        assert large in text
        text = text.replace(large, small)
    config = json.loads(text)
    assert config["architectures"] == ["Terratorch"]
    assert not network_of(config["pretrained_cfg"]).training
    assert type(data_module_of(config["pretrained_cfg"])).__name__ == "Sen1Floods11NonGeoDataModule"


@pytest.mark.slow
def test_commands_of_terratorch(tmp_path, monkeypatch):
    """A model and a scene are made and run, as they stand there."""
    monkeypatch.chdir(tmp_path)
    block = shown("terratorch.md", "shell", "make_model.py")
    for command, _ in commands(block):
        program, *arguments = shlex.split(command)
        if program == "python":
            run_script(ROOT / arguments[0], *arguments[1:], cwd=tmp_path)
        else:
            assert program == "vllm-mmout"
            run_script("-m", "vllm_mmout.cli", *arguments, cwd=tmp_path)
    assert (tmp_path / "mask.tif").stat().st_size > 1000
