# ruff: noqa: INP001 - scripts are no package
"""The page of docs/ that says which architectures work."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Iterable
from pathlib import Path

from trying import IMAGES, architectures

WORDS = ("works", "runs", "neither", "transformers itself fails", "not tried")


def page(rows: Path) -> str:
    """The rows as a page."""
    from importlib.metadata import version

    import vllm

    found = {
        row["architecture"]: row["result"].replace("|", "/") for row in map(json.loads, rows.read_text().splitlines())
    }
    tables = architectures()
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, table in tables.items():
        counts[table][word_of(found.get(name))] += 1
    images = _sum(counts[table] for table in IMAGES)
    others = _sum(counted for table, counted in counts.items() if table not in IMAGES)
    lines = [
        "# Architectures of transformers, tried",
        "",
        (
            f"By `python scripts/transformers_table` on {time.strftime('%Y-%m-%d')}: transformers"
            f" {version('transformers')},\n"
            f"torch {version('torch')}, vLLM {vllm.__version__}, with processors of torchvision and timm. Small,\n"
            "random weights, two inputs of different sizes, in a batch and alone."
        ),
        "",
        "- *works*: equal to transformers called directly with the same processor: labels, their order and pixels",
        "  exactly, floats within 1e-5, of the largest value where that is above 1;",
        "- *runs*: gives results, and transformers has nothing to compare them with;",
        "- *transformers itself fails*: no configuration that the script makes is one that transformers runs here.",
        "",
        "| table | " + " | ".join(WORDS) + " |",
        "|---" * (len(WORDS) + 1) + "|",
        *(_row(table, counted) for table, counted in counts.items() if counted.total()),
        _row("**pictures**", images),
        _row("**all others**", others),
        "",
        "| architecture | table | result |",
        "|---|---|---|",
        *(f"| {name} | {table} | {found[name]} |" for name, table in tables.items() if name in found),
    ]
    return "\n".join(lines) + "\n"


def word_of(result: str | None) -> str:
    """What counts of a result."""
    if result is None:
        return "not tried"
    word = result.partition(";")[0].partition(":")[0].replace("transformers itself", "transformers itself fails")
    return word if word in WORDS else "neither"


def _sum(counts: Iterable[collections.Counter[str]]) -> collections.Counter[str]:
    return sum(counts, collections.Counter())


def _row(name: str, counted: collections.Counter[str]) -> str:
    return f"| {name} | " + " | ".join(str(counted[word]) for word in WORDS) + " |"
