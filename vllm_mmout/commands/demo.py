"""``vllm-mmout demo``: runs the embedded model on the embedded scene."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vllm_mmout.commands import Subparsers
from vllm_mmout.errors import SaveError

ASKED_IOU = 0.9
"""Smallest intersection over union of water for a successful demo."""

MODEL = "water-index"


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its arguments to the parser."""
    parser = subparsers.add_parser(
        "demo",
        help="map a flood: the embedded model on the embedded scene",
        description="Map a flood with the embedded model on the embedded scene; needs no download."
        " Further flags go to the engine, as to vllm serve.",
        allow_abbrev=False,
    )
    parser.add_argument("-o", "--out", default="demo-output", help="folder for the scene and the maps (%(default)s)")
    parser.set_defaults(run=run, takes_engine_flags=True)


def run(options: argparse.Namespace) -> int:
    """Run the command: write the scene, a GeoTIFF and a PNG, and print how accurately the water was found."""
    from vllm_mmout.commands.engine import engine
    from vllm_mmout.models.embedded.scene import embedded_scene, embedded_truth, water_iou

    folder = Path(options.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"cannot make the folder {folder}: {error.strerror}; choose another with -o") from error
    path = embedded_scene(folder / "scene.tif")
    # A small share of the memory: a demo must not fail because the device is busy with something else.
    with engine(MODEL, ["--gpu-memory-utilization", "0.3", *options.engine_flags], ["--out"]) as llm:
        mask = llm.generate(path, use_tqdm=False)[0].outputs
    iou = water_iou(mask.array[0], embedded_truth())
    print(f"scene    {path}")
    print(f"GeoTIFF  {mask.save(folder / 'water.tif')}  ({mask.crs}, nodata {mask.nodata:g})")
    print(f"PNG      {mask.save(folder / 'water.png')}")
    print(f"IoU      {iou:.3f} of water against the scene's truth")
    if iou < ASKED_IOU:
        print(f"vllm-mmout: the IoU must be {ASKED_IOU} or more; the map is wrong", file=sys.stderr)
        return 1
    return 0
