"""``vllm-mmout processors``: what output processors there are."""

from __future__ import annotations

import argparse

from vllm_mmout.commands import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command's arguments."""
    parser = subparsers.add_parser(
        "processors",
        help="list output processors",
        description="List output processors that any model can be given, and installed IO Processor plugins of vLLM's.",
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Run the command: prints each name, what it returns and where it comes from."""
    from vllm_mmout.registry import MULTIMODAL_OUTPUT_REGISTRY

    known = MULTIMODAL_OUTPUT_REGISTRY.known()
    rows = []
    for name, origin in known.items():
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
