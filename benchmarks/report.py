"""A row of figures, and how a table of them is written."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """What one measurement found."""

    name: str
    figures: dict[str, float]
    asked: str = ""
    """What the project asks of the figures, in words."""
    met: bool | None = None
    """Whether they meet it, None where nothing is asked."""


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that ``percent`` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def as_table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| measurement | figures | asked | met |", "|---|---|---|---|"]
    for row in rows:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in row.figures.items())
        met = {True: "yes", False: "NO", None: ""}[row.met]
        lines.append(f"| {row.name} | {figures} | {row.asked} | {met} |")
    return "\n".join(lines) + "\n"


def write(rows: list[Row], folder: Path) -> None:
    """Write ``results.json`` and ``results.md``."""
    import torch  # not before memory has been measured

    folder.mkdir(parents=True, exist_ok=True)
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    if torch.cuda.is_available():
        machine |= {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    document = {"date": time.strftime("%Y-%m-%d"), **machine, "rows": [asdict(row) for row in rows]}
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    title = ", ".join(f"{name} {value}" for name, value in document.items() if name != "rows")
    (folder / "results.md").write_text(f"{title}\n\n{as_table(rows)}")
