"""``vllm-mmout run``: runs a model on files, without a server. The options of a request are command line flags."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from vllm_mmout.commands import Subparsers
from vllm_mmout.commands.request_flags import RUN_OPTIONS, flag
from vllm_mmout.commands.run_figure import FIGURE, FIGURE_TITLE, check_figure, save_figure
from vllm_mmout.commands.run_report import report
from vllm_mmout.engine.mosaic.mosaic import Mosaic
from vllm_mmout.errors import AssumedWarning, InputError, OptionError, SaveError
from vllm_mmout.geo import (
    address_fault,
    check_bucket,
    in_bucket,
    is_folder,
    is_gdal_name,
    place_of,
    scenes_below,
)
from vllm_mmout.models.inputs.catalogued import expanded
from vllm_mmout.models.inputs.input_forms import name_of
from vllm_mmout.outputs.formats import FORMATS, format_named, suffix_of
from vllm_mmout.params import OutputParams
from vllm_mmout.wing import extensions

TRACE = "--mmout-trace"
FORMAT = "--output-format"
OWN_FLAGS = ("--out", FORMAT, FIGURE, FIGURE_TITLE, TRACE, *map(flag, RUN_OPTIONS))


def add_parser(subparsers: Subparsers) -> None:
    """Add the ``run`` command and its arguments to the program's parser."""
    parser = subparsers.add_parser(
        "run",
        help="run a model on files",
        description="Run a model on files. Each INPUT has a result; with --mosaic the results become one map. Flags"
        " that are not listed here go to the engine, as to vllm serve; write them last.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="folder, hub id, or embedded model (water-index)")
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="image file, GeoTIFF, its address (https://, s3://, gs://, az://), or a folder with one file per"
        " band; for a folder in a bucket, s3://bucket/scenes/, each scene below it is one input; a STAC item or"
        " item collection (.json)",
    )
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="PATH",
        help="file for one input or a mosaic (its suffix is the format), or folder, also in a bucket",
    )
    parser.add_argument(
        FORMAT,
        metavar="NAME",
        help="format of the files in a folder: " + ", ".join(FORMATS) + "; default: that of the kind of output",
    )
    for name, arguments in RUN_OPTIONS.items():
        parser.add_argument(flag(name), **arguments)
    parser.add_argument(
        FIGURE, metavar="FILE", help="file for a figure of the result with legend and areas (.png, .pdf, .svg)"
    )
    parser.add_argument(FIGURE_TITLE, metavar="TEXT", help="title of the figure; default: the model's name")
    parser.add_argument(
        TRACE, metavar="FILE", help="file for a trace of the time spent on each input and tile, for ui.perfetto.dev"
    )
    for extension in extensions("run"):
        extension.add_flags(parser)
    parser.set_defaults(run=run, takes_engine_flags=True)


@dataclass(frozen=True, slots=True)
class RunInput:
    """Input of the command ``vllm-mmout run``, with the output subfolder for its result."""

    data: Any
    """Path or address of the input, or a catalogue's record of it, such as a STAC item."""
    folder: str = ""
    """Subfolder of the output folder for the result, ending in "/", or "" for the output folder itself."""
    fault: str | None = None
    """Error message if ``data`` is a malformed address of a file in a bucket, else None."""

    @property
    def name(self) -> str:
        """Name of the input in messages."""
        return self.data if isinstance(self.data, str) else name_of(self.data)

    @classmethod
    def of(cls, argument: str) -> Iterator[Self]:
        """Yield the inputs that a command line argument names. For a folder in a bucket, yield each scene below it."""
        if not in_bucket(argument) or not is_folder(argument):
            yield from map(cls, expanded(argument))
            return
        for scene in scenes_below(argument):
            folder, slash, _ = scene.removeprefix(f"{argument.rstrip('/')}/").rpartition("/")
            yield cls(scene, folder + slash, address_fault(scene))


def run(options: argparse.Namespace) -> int:
    """Run the command, and return its exit status."""
    if options.each_day:
        _check_each_day(options)
        options.mosaic = options.mosaic or "newest"
    if options.mosaic is None and (options.mosaic_grid is not None or options.skip_failed):
        raise OptionError("--grid and --skip-failed are for a mosaic; add --mosaic, or leave them out")
    grid = None if isinstance(options.mosaic_grid, str) else options.mosaic_grid  # a text names a file
    chosen = OutputParams(**{**{name: getattr(options, name) for name in RUN_OPTIONS}, "mosaic_grid": grid})
    asked = [(extension, flags) for extension in extensions("run") if (flags := extension.asked(options))]
    if len(asked) > 1:
        together = " with ".join(", ".join(flags) for _, flags in asked)
        raise OptionError(f"{together} is not supported; leave out the flags of one kind of run")
    for extension, _ in asked:
        status: int = extension.run(options, chosen)
        return status
    return run_inputs(options, chosen, [each for argument in options.inputs for each in RunInput.of(argument)])


def run_inputs(options: argparse.Namespace, chosen: OutputParams, listed: Sequence[RunInput]) -> int:
    """Run the model on the inputs ``listed`` with the request options ``chosen``, and return the exit status.

    If an input fails, its error is printed, and the next input is processed.
    """
    faults = [each.fault for each in listed if each.fault is not None]
    for fault in faults:
        print(fault, file=sys.stderr)
    inputs_to_run = [each for each in listed if each.fault is None]
    if not inputs_to_run:
        return 1
    if chosen.mosaic is not None and faults:
        return 1
    if options.figure is None and options.figure_title is not None:
        raise OptionError(f"{FIGURE_TITLE} is the title of a figure; add {FIGURE}, or leave it out")
    if options.figure is not None:
        check_figure(options.figure, len(listed) if chosen.mosaic is None else 1)
    several = chosen.mosaic is None and (len(listed) > 1 or any(each.folder for each in listed))
    out = _checked_out(options.out, inputs_to_run, several=several)
    data: list[Any] = [each.data for each in inputs_to_run]
    if chosen.mosaic is not None:
        grid = options.mosaic_grid if chosen.mosaic_grid is None else None
        data = [Mosaic(data, grid=grid)]
        inputs_to_run = inputs_to_run[:1]
    paths = _paths(out, inputs_to_run, options.output_format)
    params = [msgspec.structs.replace(chosen, path=path) for path in paths]
    from vllm_mmout.commands.engine import engine

    started = engine(options.model, options.engine_flags, OWN_FLAGS, trace=options.mmout_trace)
    with started as llm, warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumedWarning)  # `report` prints it
        results = llm.generate(data, params, use_tqdm=sys.stderr.isatty())
        if options.figure is not None and results[0].error is None:
            save_figure(results[0].outputs, options.figure, options.figure_title)
    names = [each.name if chosen.mosaic is None else "the mosaic" for each in inputs_to_run]
    reports = [report(name, result) for name, result in zip(names, results, strict=True)]
    failed = reports.count(False) + len(faults)
    if chosen.mosaic is not None and not options.skip_failed and isinstance(results[0].error, InputError):
        print("--skip-failed leaves inputs that cannot be read out of the mosaic", file=sys.stderr)
    if failed and len(listed) > 1 and chosen.mosaic is None:
        print(f"{failed} of {len(listed)} inputs failed", file=sys.stderr)
    return 1 if failed else 0


def _paths(out: str, inputs_to_run: Sequence[RunInput], output_format: str | None) -> list[str]:
    """Return the output path for each input.

    With ``output_format``, each path names a file, and missing local folders are created. Without ``output_format``, a
    path may name a folder.
    """
    if output_format is None:
        return [out + each.folder for each in inputs_to_run]
    form = format_named(output_format)
    if form is None:
        raise OptionError(f"{FORMAT} {output_format} is no format (known: {', '.join(FORMATS)})")
    if not is_folder(out):
        if suffix_of(place_of(out)) not in form.suffixes:
            raise OptionError(f"-o {out} names another format than {FORMAT} {output_format}; leave one of them out")
        return [out]
    for each in inputs_to_run:
        if isinstance(folder := place_of(out + each.folder), Path):
            folder.mkdir(parents=True, exist_ok=True)
    return [f"{out}{each.folder}{name_of(each.data)}{form.suffixes[0]}" for each in inputs_to_run]


def _check_each_day(options: argparse.Namespace) -> None:
    for flag_name, value in ((FIGURE, options.figure), (FORMAT, options.output_format)):
        if value is not None:
            raise OptionError(f"{flag_name} is for one map, and --each-day makes several; leave one of them out")


def _checked_out(out: str, inputs_to_run: Sequence[RunInput], *, several: bool) -> str:
    """Check the inputs and the output path ``out``. Return the path, with "/" at its end if it is a folder."""
    inputs = [each.data for each in inputs_to_run if isinstance(each.data, str)]
    are_all_texts = len(inputs) == len(inputs_to_run)
    if are_all_texts and not any("://" in name or is_gdal_name(name) or Path(name).exists() for name in inputs):
        raise InputError(f"no such file: {', '.join(inputs)} (looked from {Path.cwd()})")
    target = place_of(out)
    if several and isinstance(target, Path) and target.is_file():
        raise OptionError(f"-o {out} is a file, and there are {len(inputs_to_run)} inputs; name a folder")
    names = Counter(each.folder + name_of(each.data) for each in inputs_to_run)
    twice = sorted(name for name, count in names.items() if count > 1)
    if several and twice:
        raise OptionError(f"several inputs are called {', '.join(twice)}; their results would overwrite each other")
    if several and target.suffix and not is_folder(out):
        raise OptionError(
            f"-o {out} names a file, and there are {len(inputs_to_run)} inputs; for a folder write {out}/"
        )
    if isinstance(target, Path):
        return f"{target}{os.sep}" if several or out_file(out) is None else out
    check_bucket(target)
    return f"{target}/" if several or is_folder(out) else out


def out_file(out: str) -> Path | None:
    """Return the local file that ``-o`` names. Return None if ``-o`` names a folder.

    Raise an error if the file has no suffix to select the format, or if its folder does not exist.
    """
    if in_bucket(out):
        raise OptionError(f"-o {out} is in a bucket; name a file or folder on this machine")
    target = Path(out)
    if is_folder(out):
        return None
    if not target.parent.is_dir():
        raise SaveError(f"-o {out}: there is no folder {target.parent}; make it first")
    if not target.suffix:
        raise OptionError(
            f"-o {out} has no suffix, which tells the format (.tif, .png, ...); for a folder write {out}/"
        )
    return target
