"""``vllm-mmout areas``: counts the areas of the classes of a map that was saved as GeoTIFF. No model is needed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from vllm_mmout.commands import Subparsers
from vllm_mmout.commands.request_flags import OPTIONS
from vllm_mmout.errors import OptionError

_SUFFIXES: Final = (".csv", ".json", ".geojson")


def add_parser(subparsers: Subparsers) -> None:
    """Add the ``areas`` command and its arguments to the program's parser."""
    parser = subparsers.add_parser(
        "areas",
        help="count the areas of the classes of a saved map",
        description="Count the pixels and square metres of each class, and of nodata, of a map that was saved as"
        " GeoTIFF. No model is needed.",
    )
    parser.add_argument("map", metavar="MAP", help="GeoTIFF on this machine")
    parser.add_argument(
        "--aoi",
        **{**OPTIONS["aoi"], "help": "polygons in GeoJSON. Only pixels inside are counted, those of each feature, too"},
    )
    parser.add_argument("--aoi-crs", **OPTIONS["aoi_crs"])
    parser.add_argument(
        "-o", "--out", metavar="FILE", help=f"file of the table ({', '.join(_SUFFIXES)}); default: print it as CSV"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Count the area of each class in a saved map. Print the table, or save it to ``--out`` and print its path."""
    from vllm_mmout.outputs.saved import open_result

    suffix = ".csv" if options.out is None else Path(options.out).suffix.lower()
    if suffix not in _SUFFIXES:
        raise OptionError(f"-o {options.out} has no suffix of a table ({', '.join(_SUFFIXES)})")
    if suffix == ".geojson" and options.aoi is None:
        raise OptionError(f"-o {options.out} has the features of --aoi; give --aoi, or save as .csv or .json")
    areas = open_result(options.map).areas(options.aoi, options.aoi_crs)
    for text in areas.assumed:
        print(f"warning: {options.map}: {text}", file=sys.stderr)
    if options.out is None:
        print(areas.to_bytes("csv").decode(), end="")
    else:
        print(areas.save(options.out))
    return 0
