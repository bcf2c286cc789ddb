"""Writer of ``docs/benchmarks.md`` and its plots, which come from the records alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.records import RESULTS, Record
from benchmarks.report import Figure, Row, told

FIRST = "gpu"
"""Benchmark that the page shows first."""
HEAD = """\
# Benchmarks

These are the results of `python -m benchmarks`, the latest run of each benchmark. The page is generated from
[benchmarks/results.json](benchmarks/results.json): do not edit it. [benchmarks/README.md](../benchmarks/README.md) says
what each benchmark measures and how to run it. A figure is the median of its rounds, followed by their minimum and
maximum in brackets. If two sides are compared, they take turns. Their ratio is computed in each round, and is a figure
like others. Compare figures of one benchmark only: others ran on other days, with other work on the machine.

## Targets

| benchmark | measurement | target | measured | met |
|---|---|---|---|---|
"""


def write_page(records: Mapping[str, Record], results: Path = RESULTS) -> None:
    """Write the page beside the folder of the results file, and the plots into that folder."""
    plots = {drawing.file: drawing for drawing in drawings(records)}
    for old in results.parent.glob("*.svg"):
        if old.name not in plots:
            old.unlink()
    for drawing in plots.values():
        drawing.draw(results.parent)
    results.parent.with_suffix(".md").write_text(page(records), encoding="utf-8")


def page(records: Mapping[str, Record]) -> str:
    """Return the text of the page."""
    records = {name: records[name] for name in sorted(records, key=lambda name: (name != FIRST, name))}
    targets = [
        f"| [{name}](#{name}) | {row.name} | {row.asks} | {_found(row)} | {told(row.is_met)} |"
        for name, record in records.items()
        for row in record.rows
        if row.is_met is not None
    ]
    sections = [_section(name, record) for name, record in records.items()]
    return "\n\n".join([HEAD + "\n".join(targets), *sections]) + "\n"


def _found(row: Row) -> str:
    """Return the figures that have bounds, or all figures if the target is given in words."""
    bound = [(name, figure) for name, figure in row.each() if row.asked or figure.met is not None]
    return ", ".join(f"{name} {figure}" for name, figure in bound)


def _section(name: str, record: Record) -> str:
    plots = [f"![{drawing.title}](benchmarks/{drawing.file})" for drawing in _drawings(name, record)]
    about = [f"{record.about}.", _circumstances(record), *_remarks(record)]
    return "\n\n".join([f"## {name}", *about, *plots, *_tables(record.rows)])


def _circumstances(record: Record) -> str:
    machine, versions = record.machine, record.versions
    parts = [
        record.date,
        f"{machine.cores} cores of {machine.cpu}",
        *[f"{machine.memory_GiB:.0f} GiB"] * bool(machine.memory_GiB),
        "no GPU" if machine.gpu == "none" else machine.gpu,
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        *[f"`{name}={value}`" for name, value in record.settings.items()],
        *[f"{record.seconds:.0f} s"] * bool(record.seconds),
    ]
    return "; ".join(parts) + "."


def _remarks(record: Record) -> Iterator[str]:
    """Yield the note of a record as a list with an item for each remark. A semicolon ends a remark."""
    if record.note:
        yield "\n".join(f"- {remark[0].upper()}{remark[1:]}." for remark in record.note.split("; "))


def _tables(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a table for each run of consecutive rows whose figures have the same names."""
    for names, group in itertools.groupby(rows, key=lambda row: tuple(row.figures)):
        of_group = list(group)
        rounds = any(row.rounds > 1 for row in of_group)
        head = ["measurement", *names, *["rounds"] * rounds]
        lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for row in of_group:
            cells = [row.name, *(_cell(figure) for _, figure in row.each()), *[str(row.rounds)] * rounds]
            lines.append(f"| {' | '.join(cells)} |")
        yield "\n".join(lines)


def _cell(figure: Figure) -> str:
    return f"**{figure}**" if figure.met is False else str(figure)


class Drawing:
    """A bar chart of one figure over all rows of a benchmark that have it.

    Whiskers mark minimum and maximum, and a line marks the target.

    Args:
        benchmark: The name of the benchmark.
        figure: The name of the figure.
        rows: The rows that have the figure.

    """

    def __init__(self, benchmark: str, figure: str, rows: Iterable[Row]) -> None:
        self.title = f"{benchmark}: {figure}"
        self.file = f"{benchmark}-{''.join(c if c.isalnum() else '-' for c in figure)}.svg"
        self.figure = figure
        self.bars = {row.name: dict(row.each())[figure] for row in rows}

    @property
    def data(self) -> str:
        """The plotted values as JSON, which are stored in the SVG so that a test can detect an outdated plot."""
        shown = {name: [bar.least, bar.median, bar.most, bar.at_least, bar.at_most] for name, bar in self.bars.items()}
        return json.dumps(shown)

    def draw(self, folder: Path) -> None:
        """Write the SVG. The same values give the same bytes."""
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas

        bars = list(self.bars.values())
        with mpl.rc_context({"svg.hashsalt": self.file, "svg.fonttype": "none", "font.size": 9}):
            canvas = Canvas(figsize=(8, 0.7 + 0.32 * len(bars)), layout="constrained")
            axes = canvas.add_subplot()
            medians = [bar.median for bar in bars]
            axes.barh(range(len(bars)), medians, height=0.6, color="#4c78a8")
            for place, bar in enumerate(bars):
                if bar.least is not None and bar.most is not None:
                    axes.hlines(place, bar.least, bar.most, color="black", linewidth=1.2)
            for bound in {bound for bar in bars for bound in (bar.at_least, bar.at_most) if bound is not None}:
                axes.axvline(bound, color="#e45756", linestyle="--", linewidth=1)
            if min(medians) > 0 and max(medians) > 50 * min(medians):
                axes.set_xscale("log")
            axes.set_yticks(range(len(bars)), list(self.bars))
            axes.invert_yaxis()
            axes.set_xlabel(self.figure)
            axes.spines[["top", "right"]].set_visible(False)
            metadata = {"Date": None, "Creator": None, "Description": self.data}
            canvas.savefig(folder / self.file, format="svg", metadata=metadata)


def drawings(records: Mapping[str, Record]) -> list[Drawing]:
    """Return the plots of all records."""
    return [drawing for name, record in records.items() for drawing in _drawings(name, record)]


def _drawings(name: str, record: Record) -> list[Drawing]:
    having = ((figure, [row for row in record.rows if figure in row.figures]) for figure in record.plotted)
    return [Drawing(name, figure, rows) for figure, rows in having if rows]
