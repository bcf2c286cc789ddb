"""Command ``vllm-mmout stac``, which writes STAC items and a STAC collection for a folder of results."""

from __future__ import annotations

import argparse

from vllm_mmout.commands import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the command ``stac`` and its arguments to the parser of ``vllm-mmout``."""
    parser = subparsers.add_parser(
        "stac",
        help="write a STAC collection of a folder of results",
        description="Write collection.json into a folder of results, on this machine or in a bucket, and an item for"
        ' each GeoTIFF in it and its subfolders that has none. Needs the extra: pip install "vllm-mmout[stac]".',
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder with GeoTIFFs of results, or its address in a bucket")
    parser.add_argument("--id", metavar="ID", help="id of the collection; by default the folder's name")
    parser.add_argument("--description", metavar="TEXT", help="text about the collection")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write STAC items and a STAC collection for a folder of results, and print the collection's path."""
    from vllm_mmout.geo import place_of
    from vllm_mmout.wings.stac.folder_collections import NAME, collection

    collection(options.folder, id=options.id, description=options.description)
    print(place_of(options.folder) / NAME)
    return 0
