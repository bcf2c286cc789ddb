"""``vllm-mmout run``: a model on files, offline."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from vllm_mmout.commands import Subparsers
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.params import OutputParams


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command's arguments."""
    parser = subparsers.add_parser(
        "run", help="run a model on files", description="Run a model on files. Unknown flags go to the engine, as to vllm serve."
    )
    parser.add_argument("model", help="folder, hub id, or embedded model")
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="image file or GeoTIFF")
    parser.add_argument("-o", "--out", required=True, help="file for one input, folder for several")
    parser.add_argument("--processor", type=_names, help="output processor, or several separated by commas")
    parser.add_argument("--output", help="what the processor returns, as classes, probabilities, confidence")
    parser.add_argument("--bands", type=_bands, help="bands of the input in the model's order: 2,3,4 (from 1) or names")
    parser.add_argument("--indices", type=_indices, help="the same, counted from 0")
    parser.add_argument("--nodata", type=float, help="value of the input that means no observation")
    parser.add_argument("--overlap", type=int, default=0, help="pixels that neighbouring tiles share")
    parser.set_defaults(run=run, takes_engine_flags=True)


def run(options: argparse.Namespace) -> int:
    """Run the command; a file that fails is reported and does not stop the others."""
    _check(options)
    out = options.out if len(options.inputs) == 1 else os.path.join(options.out, "")
    params = OutputParams(
        processor=options.processor,
        output=options.output,
        bands=options.bands,
        indices=options.indices,
        nodata=options.nodata,
        overlap=options.overlap,
        path=out,
    )
    from vllm_mmout.commands.engine import make_llm

    results = make_llm(options.model, options.engine_flags).generate(options.inputs, params)
    failed = 0
    for name, result in zip(options.inputs, results, strict=True):
        if result.error is not None:
            failed += 1
            print(f"{name}: {result.error}", file=sys.stderr)
            continue
        outputs = result.outputs.values() if isinstance(result.outputs, dict) else [result.outputs]
        for output in outputs:
            print(output.path)
    return 1 if failed else 0


def _check(options: argparse.Namespace) -> None:
    """Find what can be known to fail before an engine is started."""
    for name in options.inputs:
        if "://" not in name and not Path(name).is_file():
            raise InputError(f"{name}: no such file")
    if len(options.inputs) > 1:
        if Path(options.out).is_file():
            raise OptionError(f"-o {options.out} is a file, and there are {len(options.inputs)} inputs; name a folder")
        stems = [Path(name).stem for name in options.inputs]
        twice = sorted({stem for stem in stems if stems.count(stem) > 1})
        if twice:
            raise OptionError(f"several inputs are called {', '.join(twice)}; their results would overwrite each other")


def _names(text: str) -> str | tuple[str, ...]:
    return tuple(text.split(",")) if "," in text else text


def _bands(text: str) -> tuple[int | str, ...]:
    return tuple(int(band) if band.strip().isdigit() else band.strip() for band in text.split(","))


def _indices(text: str) -> tuple[int, ...]:
    return tuple(int(index) for index in text.split(","))
