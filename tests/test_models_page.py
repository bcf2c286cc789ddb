"""The commands of docs/models.md run with folders of the models' own architecture, under the names of the page."""

from __future__ import annotations

import json
import shlex
import textwrap

import numpy as np
import pytest
from named_models import EMU3, NAMED, ORPHEUS, SNAC, write_named
from pages import all_blocks, commands
from PIL import Image

from scripts import run_script

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # in snac; a FutureWarning since torch 2.14
]
PAGE = "models.md"
IN_TERRATORCH = ("ibm-nasa-geospatial/", "models/terramind")
"""What tests/wings/terratorch/engine runs."""


def shown(start):
    """Return the words of the page's commands that begin so."""
    blocks = [block for block in all_blocks("shell") if block.page == PAGE]
    lines = [command for block in blocks for command, _ in commands(block) if command.startswith(start)]
    return [line for line in lines if not any(name in line for name in IN_TERRATORCH)]


def table(part):
    """Return the engine argument that the page shows with a text."""
    (block,) = [block for block in all_blocks("json") if block.page == PAGE and part in block.text]
    return block.text


def test_the_commands_that_write_files(tmp_path, monkeypatch):
    """Each writes its file; all run in one process, which imports the engine once."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (480, 640, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.jpg")
    lines = [shlex.split(line)[1:] for line in shown("vllm-mmout run")]
    for name in {words[1] for words in lines}:
        write_named(name, name)
    (tmp_path / "commands.py").write_text(
        textwrap.dedent(f"""
            from vllm_mmout.cli import main

            if __name__ == "__main__":
                for words in {lines}:
                    print("status:", main(words), flush=True)
        """)
    )
    done = run_script("commands.py", cwd=tmp_path, VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
    assert done.stdout.count("status: 0\n") == len(lines) >= 6, done.stdout
    for words in lines:
        assert (tmp_path / words[words.index("-o") + 1]).stat().st_size > 50


@pytest.mark.parametrize(
    ("name", "part", "modality"),
    [(ORPHEUS, "snac_24khz", "audio"), (EMU3, "vq_image", "image")],
    ids=["speech", "pictures"],
)
def test_the_engines_of_token_models(name, part, modality, tmp_path, monkeypatch):
    """The command's engine is bound by the page's table: layout, decoder and prompt fit together."""
    from vllm_mmout.commands.engine import binding_of

    monkeypatch.chdir(tmp_path)
    (line,) = [
        line for line in shown("vllm-mmout serve") if f"{'orpheus' if modality == 'audio' else 'emu3'}.json" in line
    ]
    _, _, folder, *flags = shlex.split(line.partition(" --additional-config")[0])
    write_named(name, folder)
    if modality == "audio":
        write_named(SNAC, f"{folder}/snac_24khz")
    binding = binding_of(f"./{folder}", [*flags, "--additional-config", json.dumps(json.loads(table(part)))])
    (processor,) = binding.processors.values()
    assert binding.generates
    assert processor.modality == modality


def test_every_named_model_is_known():
    """The page's commands name models that can be made here, or that TerraTorch's tests run."""
    lines = [*shown("vllm-mmout run"), *shown("vllm-mmout serve")]
    names = {shlex.split(line)[2] for line in lines}
    assert names - {*NAMED, "orpheus", "emu3"} == set()
