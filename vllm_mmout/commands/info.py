"""``vllm-mmout info``: describes a model: its bands, tiles, classes, results and options. No engine is started."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from vllm_mmout.commands import Subparsers

if TYPE_CHECKING:
    from vllm_mmout.engine.model_info import BandInfo, ModelInfo, ProcessorInfo

_INDENT = 14
"""Width of the headings in the printed text, in characters."""
_MAX_CLASSES = 40
"""Maximum number of classes that are printed for an output processor."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the ``info`` command and its arguments to the program's parser."""
    parser = subparsers.add_parser(
        "info",
        help="describe a model",
        description="Describe a model without starting an engine: bands in their order, dates, tiles, scaling, output"
        " processors with their classes and formats, and the options of requests. Flags that are not listed here are"
        " those of vllm serve. A model of the hub must be in the local cache.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="folder, hub id, or embedded model (water-index)")
    parser.add_argument("--json", action="store_true", help="print JSON, as in the field mmout of /v1/models")
    parser.set_defaults(run=run, takes_engine_flags=True)


def run(options: argparse.Namespace) -> int:
    """Print the description of a model."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported
    from vllm_mmout.commands.engine import info_of

    info = info_of(options.model, options.engine_flags)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(info), indent=2).decode())
    else:
        print("\n".join(_lines(info)))
    return 0


def _lines(info: ModelInfo) -> Iterator[str]:
    """Yield the description of a model as lines of text."""
    yield _row("model", info.model)
    yield _row("architecture", info.architecture)
    yield _row("served by", f"{info.served_by} (from {info.provided_by})")
    yield _row("takes", info.takes)
    yield from _rows("bands", _bands(info.bands))
    if info.tile is not None:
        yield _row("dates", "one, without an axis of dates" if info.dates is None else str(info.dates))
        yield _row("tile", f"{info.tile.height} x {info.tile.width} pixels; in one forward {info.tile.sizes}")
    if info.bands and info.bands[0].scaling is None:
        yield _row("scaling", "by the model")
    for number, processor in enumerate(info.processors):
        default = f" (default, chosen by {info.chosen_by})" if not number else ""
        yield _row("processor", f"{processor.name}{default}: answers with {processor.answers_with}")
        yield from _rows("  outputs", _outputs(processor))
        yield from _rows("  classes", _classes(processor))
    yield _row("options", ", ".join(info.options))
    yield from _rows("assumes", info.assumes)


def _bands(bands: Sequence[BandInfo]) -> list[str]:
    rows = [
        (f"{number:2}", band.image or "", band.name, "/".join(band.common_names), band.scaling or "")
        for number, band in enumerate(bands, start=1)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_cells(*(cell.ljust(width) for cell, width in zip(row, widths, strict=True))) for row in rows]


def _outputs(processor: ProcessorInfo) -> Iterator[str]:
    for kind in processor.outputs:
        yield _cells(kind.name and f"{kind.name}:", ", ".join(kind.formats) or "formats of its object")
    if processor.together:
        yield f"in one run: {', '.join(processor.together)}"


def _classes(processor: ProcessorInfo) -> Iterator[str]:
    for each in processor.classes[:_MAX_CLASSES]:
        yield _cells(each.id, each.name, each.colour)
    more = len(processor.classes) - _MAX_CLASSES
    if more > 0:
        yield f"and {more} more, which --json lists"


def _cells(*cells: object) -> str:
    return "  ".join(str(cell) for cell in cells if cell not in (None, "")).rstrip()


def _row(heading: str, text: str) -> str:
    return f"{heading:{_INDENT}}{text}".rstrip()


def _rows(heading: str, texts: Sequence[str] | Iterator[str]) -> Iterator[str]:
    """Yield a line for each text. The heading is written only before the first text."""
    for number, text in enumerate(texts):
        yield _row("" if number else heading, text)
