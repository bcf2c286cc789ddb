# ruff: noqa: INP001 - scripts are no package
"""The page of docs/ that says which architectures work, with the folder alone and with the engine argument."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from trying import IMAGES, WAYS, architectures, is_left_alone

ALONE, BY_VLLM, WORKS = "works alone", "alone, by vLLM", "works with the argument"
WORDS = (ALONE, BY_VLLM, WORKS, "runs", "neither", "transformers itself fails", "not tried")
TAKEN = "as with it"
"""Cell of an architecture not tried alone: the folder is taken, and works as with the argument."""
LEFT = "vLLM"
"""Cell of an architecture not tried alone: the folder is left to vLLM."""
_ROW = re.compile(r"^\| (\w+) \| [\w ]+ \| (.*) \| (.*) \|$", re.MULTILINE)
_DATES = re.compile(r"between (\d{4}-\d\d-\d\d) and (\d{4}-\d\d-\d\d)")
_HEADER = """\
# Architectures of transformers, tried

Made by `python scripts/transformers_table`, run between {first} and {last}: transformers {transformers},
torch {torch}, vLLM {vllm}. The models are small and have random weights. Each was asked for two inputs of
different sizes, in a batch and alone.

| column | how it was made |
|---|---|
| folder alone | Nothing is said. By [its rule](transformers.md#which-folders-are-taken) the product takes the folder, \
and does the same as with the argument, or leaves it to vLLM. {run} of {all} rows were run: those that are left to \
vLLM and work with the argument, and a sample of those that are taken. The others say what the rule \
decides: "as with it", or "vLLM". |
| with the argument | `additional_config={{"mmout": {{"output_processor": "transformers"}}}}`, by which any folder is \
taken. Each row was run, pictures with processors of torchvision and timm. |

**An architecture needs the argument** if its result with the folder alone begins with "vLLM".

| result | meaning |
|---|---|
| works | equal to transformers called directly with the same processor: labels, their order and pixels exactly, \
floats within 1e-5, of the largest value if that is above 1 |
| runs | gives results, and transformers has nothing to compare them with |
| transformers itself | no configuration that the script makes is one that transformers runs here |
| as with it | taken, as with the argument; not run |
| vLLM | left to vLLM; not run |
| vLLM: classify, equal | left to vLLM, which serves it by this task (`LLM.classify`, `LLM.embed`, `LLM.encode` with \
this `pooling_task`), with the values of transformers within 1e-3; else what differs is said |
| vLLM: does not load, vLLM: fails | left to vLLM, which cannot serve it; the error names the argument |

| table | {words} |
{line}
"""


def page(rows: Path, before: Path) -> str:
    """Return the page with the new rows, and with the old rows that were not run again."""
    from importlib.metadata import version

    import vllm

    text = before.read_text(encoding="utf-8") if before.is_file() else ""
    found: dict[str, dict[str, str]] = {
        name: dict(zip(WAYS, cells, strict=True)) for name, *cells in _ROW.findall(text)
    }
    dates = [date for pair in _DATES.findall(text) for date in pair]
    for row in map(json.loads, rows.read_text().splitlines()):
        found.setdefault(row["architecture"], {})[row["way"]] = row["result"].replace("|", "/")
        dates.append(row["date"])
    tables = {name: table for name, table in architectures().items() if name in found}
    for name in tables:
        decided = LEFT if is_left_alone(name) else TAKEN
        alone = found[name].get("alone", TAKEN)
        if alone in (TAKEN, LEFT) or alone.startswith(LEFT) != (decided == LEFT):  # or run before the rule changed
            found[name]["alone"] = decided
    header = _HEADER.format(
        first=min(dates),
        last=max(dates),
        transformers=version("transformers"),
        torch=version("torch"),
        vllm=vllm.__version__,
        run=sum(found[name]["alone"] not in (TAKEN, LEFT) for name in tables),
        all=len(tables),
        words=" | ".join(WORDS),
        line="|---" * (len(WORDS) + 1) + "|",
    )
    rows_of_table = (f"| {name} | {table} | {_cells(found[name])} |" for name, table in tables.items())
    lines = [*_counted(found), "", "| architecture | table | folder alone | with the argument |", "|---|---|---|---|"]
    return header + "\n".join([*lines, *rows_of_table]) + "\n"


def _cells(results: Mapping[str, str]) -> str:
    return " | ".join(results.get(way, "not tried") for way in WAYS)


def _counted(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the rows of the table of numbers."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, table in architectures().items():
        results = found.get(name, {})
        word = word_of(results.get("argument"))
        counts[table][word] += 1
        counts[table][ALONE] += word == WORKS and works_alone(results["alone"])
        counts[table][BY_VLLM] += word == WORKS and results["alone"].endswith(", equal")
    images = _sum(counts[table] for table in IMAGES)
    others = _sum(counted for table, counted in counts.items() if table not in IMAGES)
    return [
        *(_row(table, counted) for table, counted in counts.items() if counted.total()),
        _row("**pictures**", images),
        _row("**all others**", others),
    ]


def works_alone(result: str) -> bool:
    """Return whether an architecture that works with the argument works with the folder alone."""
    return result == TAKEN or result.startswith("works")


def word_of(result: str | None) -> str:
    """Return the heading under which a result with the argument counts."""
    if result is None:
        return "not tried"
    word = result.partition(";")[0].partition(":")[0].replace("transformers itself", "transformers itself fails")
    return {"works": WORKS}.get(word, word if word in WORDS else "neither")


def _sum(counts: Iterable[collections.Counter[str]]) -> collections.Counter[str]:
    return sum(counts, collections.Counter())


def _row(name: str, counted: collections.Counter[str]) -> str:
    return f"| {name} | " + " | ".join(str(counted[word]) for word in WORDS) + " |"
