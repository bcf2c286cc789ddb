"""``vllm-mmout demo``: the embedded model on the embedded scene."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_mmout.commands import Subparsers

ASKED_IOU = 0.9
"""Least intersection over union of water for the demo to succeed."""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command's arguments."""
    parser = subparsers.add_parser(
        "demo", help="the embedded model on the embedded scene", description="Map a flood; needs no download."
    )
    parser.add_argument("-o", "--out", default="demo-output", help="folder for the scene and the maps (%(default)s)")
    parser.set_defaults(run=run, takes_engine_flags=True)


def run(options: argparse.Namespace) -> int:
    """Run the command: writes the scene, a GeoTIFF and a PNG, and prints how well the water was found."""
    from vllm_mmout.commands.engine import make_llm
    from vllm_mmout.models.embedded import embedded_scene
    from vllm_mmout.models.scene import make_scene, water_iou

    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    scene = embedded_scene(folder / "scene.tif")
    mask = make_llm("water-index", options.engine_flags).generate(str(scene))[0].outputs
    iou = water_iou(mask.array[0], make_scene().truth)
    print(f"scene    {scene}")
    print(f"GeoTIFF  {mask.save(folder / 'water.tif')}  ({mask.crs}, nodata {mask.nodata:g})")
    print(f"PNG      {mask.save(folder / 'water.png')}")
    print(f"IoU      {iou:.3f} of water against the scene's truth")
    return 0 if iou >= ASKED_IOU else 1
