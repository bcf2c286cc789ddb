"""``vllm-mmout processors``: lists the output processors that are available."""

from __future__ import annotations

import argparse

from vllm_mmout.commands import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the ``processors`` command to the program's parser."""
    parser = subparsers.add_parser(
        "processors",
        help="list output processors",
        description="List the output processors that any model can use, and installed IO Processor plugins of vLLM.",
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print a table of the available output processors: name, kind of output, choices of ``output=`` and origin."""
    from vllm_mmout.registry import MULTIMODAL_OUTPUT_REGISTRY

    origins = MULTIMODAL_OUTPUT_REGISTRY.known()
    rows = []
    for name, origin in origins.items():
        registration = MULTIMODAL_OUTPUT_REGISTRY.installed(name)
        if registration is None:
            continue
        processor = registration.load()
        rows.append((name, processor.modality, ", ".join(processor.outputs) or "-", origin))
    heads = ("name", "returns", "output=", "from")
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    for row in [heads, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0
