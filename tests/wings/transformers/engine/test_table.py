"""The table of architectures: its script finds here, for a few, what the page says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pages import ROOT

from vllm_mmout.wings.transformers.heads import ARCHITECTURES, TABLES

pytestmark = pytest.mark.engine
PAGE = ROOT / "docs" / "transformers-table.md"
TRIED = ("CLIPModel", "PatchTSTForRegression", "VitsModel", "FNetForTokenClassification")
"""Of different tables, each a second or two."""


def rows():
    """Return the page's rows: architecture -> its table, its result with the folder alone, and with the argument."""
    cells = (line.strip("| \n").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines())
    return {row[0]: tuple(row[1:]) for row in cells if len(row) == 4 and not row[0].startswith("arch")}


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # of a module of transformers
def test_the_page_says_which_folders_need_the_argument():
    """Results with the folder alone begin with "vLLM" exactly for architectures left to vLLM."""
    from vllm_mmout.wings.transformers.heads import head_of
    from vllm_mmout.wings.transformers.left_to_vllm import is_left

    here = str(PAGE.parent)
    left = {name for name in rows() if is_left(name, head_of(name), here)}
    assert {name for name, (_, alone, _) in rows().items() if alone.startswith("vLLM")} == left


@pytest.mark.slow
def test_the_script_finds_what_the_page_says(tmp_path):
    """Each is built, saved, started, asked and compared anew."""
    found = tmp_path / "rows.jsonl"
    command = ["scripts/transformers_table", "--rows", str(found), "--only", ",".join(TRIED), "--way", "argument"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = {row["architecture"]: row["result"] for row in map(json.loads, found.read_text().splitlines())}
    assert results == {name: rows()[name][2] for name in TRIED}
    assert set(results.values()) == {"works"}


@pytest.mark.slow
def test_most_of_what_the_tables_have_works():
    """The page has every architecture of each table that is served, and the shares that are promised."""
    from transformers.models.auto import modeling_auto

    page = rows()
    wanted = set(ARCHITECTURES)
    for name in TABLES:
        for classes in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES").values():
            wanted |= {classes} if isinstance(classes, str) else set(classes)
    assert page.keys() == wanted
    assert not [results for _, *results in page.values() if any(one.startswith("ends the engine") for one in results)]
    from_pictures = {name: result for name, (table, _, result) in page.items() if table in IMAGES}
    others = {name: result for name, (table, _, result) in page.items() if table not in IMAGES}
    for results, share in ((from_pictures, 0.85), (others, 0.6)):
        assert sum(result.startswith("works") for result in results.values()) >= share * len(results)


IMAGES = {name for name, head in TABLES.items() if head.takes == "image"} - {
    "VISUAL_QUESTION_ANSWERING",
    "DOCUMENT_QUESTION_ANSWERING",
}
"""Tables of pictures, as the page counts them."""
