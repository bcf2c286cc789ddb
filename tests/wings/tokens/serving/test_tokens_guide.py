"""What docs/serving.md, docs/tokens.md and ``/openapi.json`` say of models that generate tokens is what there is."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from pages import all_blocks, commands

pytest.importorskip("vllm", reason="the server is vLLM's")

from vllm_mmout.registry import OutputRegistry
from vllm_mmout.registry.resolve import resolve
from vllm_mmout.wings.tokens.layouts import TokenLayout
from vllm_mmout.wings.tokens.processors.prompt_template import FIELDS as PLACES
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate
from vllm_mmout.wings.tokens.serving import fields
from vllm_mmout.wings.tokens.serving.fields import SAMPLING
from vllm_mmout.wings.tokens.serving.speech import RESPONSE_FORMATS

pytestmark = pytest.mark.engine
GUIDE = (Path(__file__).resolve().parents[4] / "docs" / "serving.md").read_text(encoding="utf-8")
TEXT = re.sub(r"^```.*?^```$", "", GUIDE, flags=re.MULTILINE | re.DOTALL)
"""Without its programs."""
SECTIONS = {part.partition("\n")[0].strip(): part for part in re.split(r"^##+ ", TEXT, flags=re.MULTILINE)[1:]}


def names(text):
    """What stands there as code."""
    return re.findall(r"`([^`]+)`", text)


def table(section):
    """The fields of a table, with their values."""
    rows = re.findall(r"^\| (`.+?) \| (.*?) \|", SECTIONS[section], flags=re.MULTILINE)
    return {name: names(values) for fields, values in rows for name in names(fields)}


@pytest.mark.parametrize(
    ("section", "known", "also"),
    [("Pictures of texts", fields.IMAGES, set()), ("Speech", fields.SPEECH, {"voice"})],
)
def test_the_tables_have_every_field(section, known, also):
    """But those of sampling, which have a list."""
    assert set(table(section)) == {*known.options, *also} - SAMPLING.keys()


def test_the_list_of_sampling_fields_has_every_field():
    """In the order of their description."""
    listed = SECTIONS["Sampling"].partition("Defaults are")[0]
    assert set(names(listed)) - {"extra_body"} == set(SAMPLING)


def test_formats_and_places_are_listed():
    """Of sounds, and of templates."""
    assert tuple(table("Speech")["response_format"]) == RESPONSE_FORMATS
    assert {f"{{{name}}}" for names_ in PLACES.values() for name in names_} <= set(names(SECTIONS["The prompt"]))


def shown(page, kind, part):
    """The one block of a page with a text."""
    (block,) = [block for block in all_blocks(kind) if block.page == page and part in block.text]
    return block


def run(block, names):
    """Run Python of a page, as it stands."""
    exec(compile(block.text, str(block), "exec"), names)  # noqa: S102 - the pages are our own


def shell(block, server, folder):
    """Run the command of a page for a server."""
    ((command, _),) = commands(block)
    there = command.replace("localhost:8000", server.url.removeprefix("http://"))
    subprocess.run(["/bin/bash", "-euc", there], cwd=folder, check=True, env={"PATH": "/usr/bin:/bin", "NO_PROXY": "*"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "part", "commanded", "files"),
    [
        ("drawing_server", "painter", "a lake", {"lake-0.png", "lake-1.png", "lake.png"}),
        ("speaking_server", "speaker", "speech.mp3", {"speech.wav", "speech.mp3"}),
    ],
)
def test_requests_of_the_page(server, part, commanded, files, request, tmp_path, monkeypatch):
    """OpenAI's client and curl get the files that the page names."""
    import base64

    import openai

    server = request.getfixturevalue(server)
    monkeypatch.chdir(tmp_path)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        run(shown("serving.md", "python", part), {"client": client, "base64": base64})
    shell(shown("serving.md", "shell", commanded), server, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == files
    assert all(file.stat().st_size > 50 for file in tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "model", "file"),
    [("drawing_server", "painter", "chat-0.png"), ("speaking_server", "speaker", "answer.pcm")],
)
def test_chats_of_the_page(server, model, file, request, tmp_path, monkeypatch):
    """OpenAI's client gets the file that the page names."""
    import base64

    import openai

    server = request.getfixturevalue(server)
    monkeypatch.chdir(tmp_path)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        run(shown("tokens.md", "python", f'model="{model}"'), {"client": client, "base64": base64})
    assert (tmp_path / file).stat().st_size > 50


def test_the_template_of_the_page():
    """Its prompt has the places of a size, with a default each."""
    table = json.loads(shown("serving.md", "json", "USER: {prompt}").text)["mmout"]
    template = PromptTemplate.parse(table["prompt"], "image")
    assert template.names == {"prompt", "rows", "columns"}
    assert (template.default("rows"), template.default("columns")) == ("90", "90")


def test_a_model_of_pictures_and_sounds_has_a_layout_and_a_decoder_for_each():
    """The table of the page gives each processor its own options."""
    config = json.loads(shown("tokens.md", "json", "codec_audio").text)
    found = resolve(OutputRegistry(), engine_table=None, config=config, architectures=[], model_class=lambda: None)
    modalities = {name: TokenLayout(**options["layout"]).modality for name, options in found.options.items()}
    assert modalities == {"picture": "image", "sound": "audio"}
    assert [options["decoder"] for options in found.options.values()] == ["vq", "codec"]


def test_python_of_the_page_of_tokens(tmp_path, monkeypatch):
    """It asks a model for a picture, and saves it, and for whole ones; a small model's prompt says how large."""
    from drawing_tokens import Drawing
    from model_folders import kept_engine
    from token_models import IMAGE_LAYOUT, image_model

    folder = image_model(tmp_path / "painter", layout={**IMAGE_LAYOUT, "opened": True})
    engine = kept_engine(folder, dtype="float32", enforce_eager=True, max_model_len=512, logits_processors=[Drawing])
    monkeypatch.setattr("vllm.LLM", lambda model: {"models/painter": engine}[model])
    monkeypatch.chdir(tmp_path)
    found = {"__name__": "__main__"}
    for block in (shown("tokens.md", "python", "cube.png"), shown("tokens.md", "python", 'output="media"')):
        text = block.text.replace('"a red cube"', '"a red cube<pad>3x4<boi>"')
        exec(compile(text, str(block), "exec"), found)  # noqa: S102 - the pages are our own
    (picture,) = found["answer"].multimodal
    assert (picture.array.shape[:2], picture.partial) == ((6, 8), False)
    assert (tmp_path / "cube.png").stat().st_size > 50
