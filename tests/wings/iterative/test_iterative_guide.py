"""What docs/iterative.md shows is run as it stands there."""

from __future__ import annotations

import json

import pytest
from model_folders import engine_here
from pages import all_blocks

pytestmark = pytest.mark.engine


def test_a_model_in_thirty_lines(tmp_path, monkeypatch):
    """The class, its folder, two requests of different lengths, and its check."""
    from PIL import Image
    from safetensors.torch import save_file

    model, asked, check = (block.text for block in all_blocks("python") if block.page == "iterative.md")
    (config,) = (block.text for block in all_blocks("json") if block.page == "iterative.md")
    (tmp_path / "flow.py").write_text(model)
    (tmp_path / "flow").mkdir()
    (tmp_path / "flow/config.json").write_text(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from flow import Flow

    save_file(Flow(json.loads(config)).state_dict(), "flow/model.safetensors")
    asked = asked.replace("from vllm import LLM\n", "")  # one in this process
    exec(asked, {"__name__": "__main__", "LLM": engine_here})  # noqa: S102 - the pages are our own
    with Image.open("three.png") as picture:
        assert picture.size == (16, 16)
    names = {}
    exec(check, names)  # noqa: S102 - the pages are our own
    names["test_flow"]()
