"""The messages that docs/troubleshooting.md explains are in the sources, and what it links is there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
OF_VLLM = "Messages of vLLM"
WITHOUT = "No message"
"""The section of what has no message."""
VLLM_FILES = (
    "config/model.py",
    "entrypoints/llm.py",
    "entrypoints/openai/models/serving.py",
    "model_executor/models/registry.py",
    "renderers/params.py",
    "transformers_utils/config.py",
    "v1/core/kv_cache_coordinator.py",
    "v1/core/kv_cache_planning.py",  # since 0.33
    "v1/core/kv_cache_utils.py",
    "v1/engine/exceptions.py",
    "v1/engine/utils.py",
    "v1/sample/logits_processor/__init__.py",
    "v1/worker/lora_model_runner_mixin.py",
    "v1/worker/utils.py",
)
"""The files of vLLM that raise what the page explains."""


def messages(section):
    """Return the pieces of the messages in the first column of a section's table."""
    cells = re.findall(r"^\| (`.+?) \|", SECTIONS[section], flags=re.MULTILINE)
    quoted = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    return [piece.strip() for message in quoted for piece in message.split("...") if piece.strip()]


def texts(files):
    """Return the sources of files with each text that continues on the next line joined to one."""
    joined = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r"""["']\s*\n\s*[rf]*["']""", "", joined)


def test_every_message_is_one_of_ours():
    """Each piece is in a file of the package, letter by letter."""
    ours = texts(sorted((ROOT / "vllm_mmout").rglob("*.py")))
    quoted = [piece for section in SECTIONS if section not in (OF_VLLM, WITHOUT) for piece in messages(section)]
    assert len(quoted) > 40
    assert [piece for piece in quoted if piece not in ours and piece not in OF_VLLMS_LAYERS] == []


OF_VLLMS_LAYERS = ("does not support LoRA yet",)
"""A message of vLLM that is explained among ours."""


@pytest.mark.engine
def test_every_message_of_vllm_is_in_it():
    """Each piece is in the installed vLLM."""
    (folder,) = importlib.util.find_spec("vllm").submodule_search_locations
    theirs = texts(Path(folder, file) for file in VLLM_FILES if Path(folder, file).is_file())
    assert [piece for piece in (*messages(OF_VLLM), *OF_VLLMS_LAYERS) if piece not in theirs] == []
