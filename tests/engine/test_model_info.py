"""``vllm-mmout info`` and the field ``mmout`` of ``/v1/models``."""

from __future__ import annotations

import asyncio
import json

import pytest

from vllm_mmout.cli import main
from vllm_mmout.commands.engine import info_of

pytestmark = pytest.mark.engine


def test_the_embedded_model_is_described(capsys):
    """The text has bands in the model's order with their common names, tiles, classes with colours, and options."""
    assert main(["info", "water-index"]) == 0
    said = capsys.readouterr().out
    bands = [line.split()[-1] for line in said.splitlines() if line[14:16].strip().isdigit()]
    assert bands[:6] == ["blue", "green", "red", "nir08", "swir16", "swir22"]
    for text in ("WaterIndex", "512 x 512 pixels", "1  water  #0072b2", "classes, polygons, areas", "geopackage"):
        assert text in said


def test_json_says_the_same(capsys):
    """``--json`` holds what the text says, and a faulty option of the engine is an error of one line."""
    assert main(["info", "water-index", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert [band["name"] for band in info["bands"]][:2] == ["blue", "green"]
    assert info["tile"]["height"] == info["tile"]["width"] == 512
    (processor,) = info["processors"]
    formats = ["tiff", "png", "webp", "jpeg", "avif", "npz", "netcdf", "zarr"]
    assert processor["outputs"][0] == {"name": "classes", "formats": formats}
    assert processor["classes"][1] == {"id": 1, "name": "water", "colour": "#0072b2"}
    assert {"bbox", "tile", "output"} <= set(info["options"])
    assert not {"sampling", "dates", "guidance_scale"} & set(info["options"])


def test_a_model_that_is_not_here_is_an_error(capsys):
    """A hub id without a copy in the cache is not fetched."""
    assert main(["info", "nobody/no-such-model"]) == 1
    assert "must be in the cache" in capsys.readouterr().err


def test_v1_models_has_the_same_data(monkeypatch):
    """The entry of the base model has the description; that of an adapter has none."""
    from types import SimpleNamespace

    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.lora.request import LoRARequest

    from vllm_mmout.commands.engine import binding_of
    from vllm_mmout.serving.model_cards import describe_models

    binding = binding_of("water-index", [])
    config = SimpleNamespace(max_model_len=1)
    engine = SimpleNamespace(model_config=config, renderer=None, input_processor=None)
    models = OpenAIServingModels(engine, [BaseModelPath("river", "/models/river")])
    models.lora_requests["tuned"] = LoRARequest("tuned", 1, "/models/tuned")
    described = info_of("water-index", [])
    monkeypatch.setattr("vllm_mmout.serving.model_cards.model_info", lambda *_: described)
    describe_models(models, binding, config)
    cards = asyncio.run(models.show_available_models()).model_dump()["data"]
    assert [card["id"] for card in cards] == ["river", "tuned"]
    assert cards[0]["mmout"]["bands"][0]["common_names"] == ("blue",)
    assert "mmout" not in cards[1]
