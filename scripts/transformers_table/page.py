# ruff: noqa: INP001 - the scripts are not a package
"""Writer of docs/transformers-table.md, which shows how architectures work alone and with the engine argument."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from trying import IMAGES, WAYS, architectures, is_left_alone

ALONE, BY_VLLM, WORKS = "works alone", "alone, by vLLM", "works with the argument"
WORDS = (ALONE, BY_VLLM, WORKS, "runs", "neither", "transformers itself fails", "not tried")
TAKEN = "same"
"""Cell of an architecture not run with the folder alone, because the folder is served as with the argument."""
LEFT = "vLLM"
"""Cell of an architecture not run with the folder alone, because the folder is left to vLLM."""
_ROW = re.compile(r"^\| (\w+) \| [\w ]+ \| (.*) \| (.*) \|$", re.MULTILINE)
_DATES = re.compile(r"between (\d{4}-\d\d-\d\d) and (\d{4}-\d\d-\d\d)")
_HEADER = """\
# Architectures of transformers, tried

`python scripts/transformers_table` made this table, run between {first} and {last}: transformers {transformers},
torch {torch}, vLLM {vllm}. The models are small and have random weights. Each model had two inputs of
different sizes, in a batch and alone.

| column | how it was measured |
|---|---|
| folder alone | The engine argument is not set. By [its rule](transformers.md#which-folders-are-taken), the product \
serves the folder as with the argument, or leaves it to vLLM. {run} of {all} rows were run: all folders that are left \
to vLLM and work with the argument, and a sample of the folders that are served. The other cells show what the rule \
decides: "same" or "vLLM". |
| with the argument | `additional_config={{"mmout": {{"output_processor": "transformers"}}}}`, with which the product \
serves any folder. Each row was run, pictures with processors of torchvision and timm. |

**An architecture needs the argument** if its result with the folder alone begins with "vLLM".

| result | meaning |
|---|---|
| works | equal to transformers called directly with the same processor: labels, their order and pixels exactly, \
floats within 1e-5, relative to the largest value if that is above 1 |
| runs | gives results, but transformers has no results to compare with |
| transformers itself | transformers does not run any configuration that the script makes |
| same | served as with the argument; not run |
| vLLM | left to vLLM; not run |
| vLLM: classify, equal | left to vLLM, which serves it by this task (`LLM.classify`, `LLM.embed`, `LLM.encode` with \
this `pooling_task`), with the values of transformers within 1e-3; otherwise the difference is shown |
| vLLM: does not load, vLLM: fails | left to vLLM, which cannot serve it; the error names the engine argument |

| table | {words} |
{line}
"""


def page(rows: Path, before: Path) -> str:
    """Return the page with the new rows, and with the old rows that were not run again."""
    from importlib.metadata import version

    import vllm

    text = before.read_text(encoding="utf-8") if before.is_file() else ""
    results: dict[str, dict[str, str]] = {
        name: dict(zip(WAYS, cells, strict=True)) for name, *cells in _ROW.findall(text)
    }
    dates = [date for pair in _DATES.findall(text) for date in pair]
    for row in map(json.loads, rows.read_text().splitlines()):
        results.setdefault(row["architecture"], {})[row["way"]] = row["result"].replace("|", "/")
        dates.append(row["date"])
    tables = {name: table for name, table in architectures().items() if name in results}
    for name in tables:
        decided = LEFT if is_left_alone(name) else TAKEN
        alone = results[name].get("alone", TAKEN)
        if alone in (TAKEN, LEFT) or alone.startswith(LEFT) != (decided == LEFT):  # not run, or run under another rule
            results[name]["alone"] = decided
    header = _HEADER.format(
        first=min(dates),
        last=max(dates),
        transformers=version("transformers"),
        torch=version("torch"),
        vllm=vllm.__version__,
        run=sum(results[name]["alone"] not in (TAKEN, LEFT) for name in tables),
        all=len(tables),
        words=" | ".join(WORDS),
        line="|---" * (len(WORDS) + 1) + "|",
    )
    rows_of_table = (f"| {name} | {table} | {_cells(results[name])} |" for name, table in tables.items())
    lines = [*_counted(results), "", "| architecture | table | folder alone | with the argument |", "|---|---|---|---|"]
    return header + "\n".join([*lines, *rows_of_table]) + "\n"


def _cells(results: Mapping[str, str]) -> str:
    return " | ".join(results.get(way, "not tried") for way in WAYS)


def _counted(rows: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the rows of the table of counts."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, table in architectures().items():
        results = rows.get(name, {})
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
    """Return whether a result with the folder alone says that the architecture works."""
    return result == TAKEN or result.startswith("works")


def word_of(result: str | None) -> str:
    """Return the heading that a result with the argument counts under."""
    if result is None:
        return "not tried"
    word = result.partition(";")[0].partition(":")[0].replace("transformers itself", "transformers itself fails")
    return {"works": WORKS}.get(word, word if word in WORDS else "neither")


def _sum(counts: Iterable[collections.Counter[str]]) -> collections.Counter[str]:
    return sum(counts, collections.Counter())


def _row(name: str, counted: collections.Counter[str]) -> str:
    return f"| {name} | " + " | ".join(str(counted[word]) for word in WORDS) + " |"
