"""``vllm-mmout run``: a model on files, offline."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vllm_mmout.commands import Subparsers
from vllm_mmout.errors import InputError, OptionError, SaveError
from vllm_mmout.params import BLENDS, RESAMPLINGS, OutputParams
from vllm_mmout.raster.gdal.names import is_gdal_name
from vllm_mmout.raster.remote.address import shown, stem

if TYPE_CHECKING:
    from vllm_mmout.engine.request_output import MultimodalRequestOutput

Item = TypeVar("Item")


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command's arguments."""
    parser = subparsers.add_parser(
        "run",
        help="run a model on files",
        description="Run a model on files. Flags that are not listed here go to the engine, as to vllm serve; write"
        " them last.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="folder, hub id, or embedded model (water-index)")
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="image file, GeoTIFF, its address with https, or a folder with a file a band",
    )
    parser.add_argument(
        "-o", "--out", required=True, metavar="PATH", help="file for one input (its suffix is the format), or folder"
    )
    parser.add_argument(
        "--processor", type=_names, metavar="NAME", help="output processor, or several separated by commas"
    )
    parser.add_argument(
        "--output",
        metavar="KIND",
        help="what the processor returns, as classes, probabilities, confidence, polygons, areas",
    )
    parser.add_argument(
        "--bands",
        type=_list_of(_band),
        metavar="LIST",
        help="bands of the input in the model's order, numbers from 1 or names: 2,3,4",
    )
    parser.add_argument("--indices", type=_list_of(int), metavar="LIST", help="the same, counted from 0")
    parser.add_argument("--nodata", type=float, metavar="VALUE", help="value of the input that means no observation")
    parser.add_argument(
        "--scale", type=_numbers, metavar="LIST", help="what values are multiplied by, one number or one a band"
    )
    parser.add_argument("--offset", type=_numbers, metavar="LIST", help="what is added to them then")
    parser.add_argument(
        "--window",
        type=_list_of(int),
        metavar="ROW,COL,HEIGHT,WIDTH",
        help="part of the input to use, in pixels from the upper left",
    )
    parser.add_argument(
        "--bbox",
        type=_list_of(float),
        metavar="WEST,SOUTH,EAST,NORTH",
        help="part of the input to use, in coordinates; write --bbox=-1,... where the first is negative",
    )
    parser.add_argument(
        "--bbox-crs", metavar="CRS", help="coordinate system of --bbox, as EPSG:4326; by default the input's own"
    )
    parser.add_argument(
        "--resampling",
        choices=RESAMPLINGS,
        default="nearest",
        help="how coarser bands of a folder are brought to the finest grid (nearest)",
    )
    parser.add_argument("--tile", type=int, metavar="PIXELS", help="side of the tiles that larger inputs are cut into")
    parser.add_argument("--overlap", type=int, default=0, metavar="PIXELS", help="what neighbouring tiles share")
    parser.add_argument("--blend", choices=BLENDS, default="cosine", help="how they are averaged there (cosine)")
    parser.add_argument(
        "--simplify", type=float, metavar="PIXELS", help="how far borders of polygons may move to have fewer corners"
    )
    parser.set_defaults(run=run, takes_engine_flags=True)


OPTIONS = (
    "processor",
    "output",
    "bands",
    "indices",
    "nodata",
    "scale",
    "offset",
    "window",
    "bbox",
    "bbox_crs",
    "resampling",
    "tile",
    "overlap",
    "blend",
    "simplify",
)
"""Flags that are options of the requests."""
OWN_FLAGS = ("--out", *(f"--{name.replace('_', '-')}" for name in OPTIONS))


def run(options: argparse.Namespace) -> int:
    """Run the command; a file that fails is reported and does not stop the others."""
    chosen = {name: getattr(options, name) for name in OPTIONS}
    params = OutputParams(**chosen, path=_checked_out(options.out, options.inputs))
    from vllm_mmout.commands.engine import engine

    with engine(options.model, options.engine_flags, OWN_FLAGS) as llm:
        results = llm.generate(options.inputs, params, use_tqdm=sys.stderr.isatty())
    failed = [_report(name, result) for name, result in zip(options.inputs, results, strict=True)].count(False)
    if failed and len(results) > 1:
        print(f"{failed} of {len(results)} inputs failed", file=sys.stderr)
    return 1 if failed else 0


def _report(name: str, result: MultimodalRequestOutput) -> bool:
    """Print the files of one input, or why there are none; whether it went well."""
    if result.error is not None:
        name, message = shown(name), str(result.error)
        print(message if name in message else f"{name}: {message}", file=sys.stderr)
        return False
    for output in result.outputs.values() if isinstance(result.outputs, dict) else [result.outputs]:
        print(output.path)
    return True


def _checked_out(out: str, inputs: Sequence[str]) -> str:
    """Where to write; what can be known to fail before an engine is started fails here."""
    if not any("://" in name or is_gdal_name(name) or Path(name).exists() for name in inputs):
        raise InputError(f"no such file: {', '.join(inputs)} (looked from {Path.cwd()})")
    target = Path(out)
    if len(inputs) > 1 and target.is_file():
        raise OptionError(f"-o {out} is a file, and there are {len(inputs)} inputs; name a folder")
    stems = [stem(name) for name in inputs]
    twice = sorted({stem for stem in stems if stems.count(stem) > 1})
    if twice:
        raise OptionError(f"several inputs are called {', '.join(twice)}; their results would overwrite each other")
    if len(inputs) > 1 and target.suffix and not target.exists() and not out.endswith(os.sep):
        raise OptionError(f"-o {out} names a file, and there are {len(inputs)} inputs; for a folder write {out}/")
    if len(inputs) > 1 or target.is_dir() or out.endswith(os.sep):
        return f"{target}{os.sep}"
    if not target.parent.is_dir():
        raise SaveError(f"-o {out}: there is no folder {target.parent}; make it first")
    if not target.suffix:
        raise OptionError(
            f"-o {out} has no suffix, which tells the format (.tif, .png, ...); for a folder write {out}/"
        )
    return out


def _names(text: str) -> str | tuple[str, ...]:
    return tuple(text.split(",")) if "," in text else text


def _band(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _numbers(text: str) -> float | tuple[float, ...]:
    numbers = _list_of(float)(text)
    return numbers if len(numbers) > 1 else numbers[0]


def _list_of(convert: Callable[[str], Item]) -> Callable[[str], tuple[Item, ...]]:
    def parse(text: str) -> tuple[Item, ...]:
        try:
            return tuple(convert(part.strip()) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no list such as 2,3,4") from None

    return parse
