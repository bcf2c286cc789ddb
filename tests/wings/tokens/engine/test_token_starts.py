"""What is wrong with a token model's layout or decoder is said before any process of its engine is started."""

from __future__ import annotations

import json

import pytest
from model_folders import vllm_starts
from token_models import AUDIO_LAYOUT, ENGINE, IMAGE_LAYOUT, audio_model, image_model
from vllm import LLM

from vllm_mmout.errors import MMOutError

pytestmark = pytest.mark.engine


def changed(layout, **fields):
    """A layout with other fields."""
    return {name: value for name, value in (layout | fields).items() if value is not None}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model folder of each kind."""
    folder = tmp_path_factory.mktemp("models")
    return {"image": image_model(folder / "painter"), "audio": audio_model(folder / "singer")}


@pytest.mark.parametrize(
    ("kind", "table", "said"),
    [
        ("image", {"layout": changed(IMAGE_LAYOUT, row_ends=3)}, "row_ends.*did you mean 'row_end'"),
        ("image", {"layout": changed(IMAGE_LAYOUT, size=65)}, r"65.*decoder.*64"),
        ("image", {"layout": changed(IMAGE_LAYOUT, row_end=None)}, "grid"),
        ("image", {"layout": None}, "needs the option layout"),
        ("image", {"decoder": "nowhere"}, "nowhere"),
        ("image", {"layouts": {}}, "layouts.*did you mean 'layout'"),
        (
            "image",
            {"output_processor": "segmentation", "layout": None, "decoder": None},
            "generates tokens, and output processor 'segmentation'",
        ),
        ("image", {"output_processor": "codec_audio", "layout": AUDIO_LAYOUT}, "emu3"),
        ("audio", {"layout": changed(AUDIO_LAYOUT, codebooks=5)}, r"5 codebooks.*4"),
        ("audio", {"layout": changed(AUDIO_LAYOUT, size=[32, 32, 32])}, "size"),
    ],
)
@pytest.mark.parametrize("said_by", ["config.json", "the engine argument"])
def test_a_wrong_option(folders, tmp_path, monkeypatch, kind, table, said, said_by):
    """The error names both sides, or what is known; no process was started."""
    folder, arguments = folders[kind], dict(ENGINE)
    config = json.loads((folder / "config.json").read_text())
    if said_by == "config.json":
        copied = tmp_path / "model"
        copied.mkdir()
        for file in folder.iterdir():
            (copied / file.name).symlink_to(file)
        (copied / "config.json").unlink()
        merged = {name: value for name, value in (config["mmout"] | table).items() if value is not None}
        (copied / "config.json").write_text(json.dumps(config | {"mmout": merged}))
        folder = copied
    else:
        said_here = {name: value for name, value in table.items() if value is not None}
        if not said_here:
            pytest.skip("the engine argument cannot take an option of config.json away")
        arguments["additional_config"] = {"mmout": said_here}
    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", lambda self: pytest.fail(f"started {self}"))
    with vllm_starts("1"), pytest.raises(MMOutError, match=said):
        LLM(str(folder), **arguments)


def test_a_processor_of_tokens_for_a_model_that_answers_in_one_forward(water_index):
    """It is refused as well."""
    table = {"output_processor": "codec_audio", "layout": AUDIO_LAYOUT, "decoder": "decoder"}
    with vllm_starts("1"), pytest.raises(MMOutError, match=r"'codec_audio'.*one forward|decoder"):
        LLM(water_index, additional_config={"mmout": table})
