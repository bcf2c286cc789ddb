"""``vllm-mmout figure``: draws a result that was saved as GeoTIFF as a figure for reports. No model is needed."""

from __future__ import annotations

import argparse

from vllm_mmout.commands import Subparsers
from vllm_mmout.commands.run_figure import check_figure_file, write_figure


def add_parser(subparsers: Subparsers) -> None:
    """Add the ``figure`` command and its arguments to the program's parser."""
    parser = subparsers.add_parser(
        "figure",
        help="draw a figure of a saved map",
        description="Draw a figure of a map that was saved as GeoTIFF: its classes with their areas, a scale bar and"
        " north. No model is needed.",
    )
    parser.add_argument("map", metavar="MAP", help="GeoTIFF on this machine")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="file of the figure (.png, .pdf, .svg)")
    parser.add_argument("--title", metavar="TEXT", help="heading; default: name of the model; '' for none")
    parser.add_argument(
        "--below", nargs="+", metavar="SCENE", help="raster files to draw below the map, warped to its grid"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Draw the figure, and print the path of its file."""
    from vllm_mmout.outputs.saved import open_result

    check_figure_file(options.out, "-o")
    write_figure(open_result(options.map).figure(title=options.title, picture=options.below), options.out)
    return 0
