"""``vllm-mmout demo``: maps the flood in the bundled scene with the bundled model, to try an installation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vllm_mmout.commands import Subparsers
from vllm_mmout.errors import SaveError

MIN_IOU = 0.9
"""Minimum intersection over union (IoU) of the mapped and the true water. Below it, the demo fails."""

MODEL = "water-index"
SCENE = "scene.tif"
MAPS = ("water.tif", "water.png")


def add_parser(subparsers: Subparsers) -> None:
    """Add the ``demo`` command and its arguments to the program's parser."""
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
    """Run the demo: write the scene and its water map as GeoTIFF and PNG, and print the IoU with the true water."""
    from vllm_mmout.commands.engine import engine
    from vllm_mmout.models.embedded.scene import embedded_truth, water_iou

    folder = Path(options.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"cannot make the folder {folder}: {error.strerror}; choose another with -o") from error
    path = _write_scene(folder)
    # A small share of the memory: a demo must not fail because the device is busy with something else.
    with engine(MODEL, ["--gpu-memory-utilization", "0.3", *options.engine_flags], ["--out"]) as llm:
        mask = llm.generate(path, use_tqdm=False)[0].outputs
    classes, truth = mask.array[0], embedded_truth()
    iou, iou_with_clouds = water_iou(classes, truth), water_iou(classes, truth, clouds=True)
    print(f"scene    {path}")
    geotiff, picture = (mask.save(folder / name) for name in MAPS)
    print(f"GeoTIFF  {geotiff}  ({mask.crs}, nodata {mask.nodata:g})")
    print(f"PNG      {picture}")
    print(
        f"IoU      {iou:.3f} of water where the ground is visible,"
        f" {iou_with_clouds:.3f} with the clouds, which the formula mostly takes for water"
    )
    if iou < MIN_IOU:
        print(f"vllm-mmout: the IoU must be {MIN_IOU} or more; the map is wrong", file=sys.stderr)
        return 1
    return 0


def _write_scene(folder: Path) -> Path:
    """Write the demo's scene to ``folder``. Raise SaveError if the folder has maps that the demo did not write."""
    from vllm_mmout.models.embedded.scene import embedded_scene

    path = folder / SCENE
    if not path.exists():  # otherwise the maps beside the scene come from an earlier demo
        existing = [str(folder / name) for name in MAPS if (folder / name).exists()]
        if existing:
            raise SaveError(f"{' and '.join(existing)} would be replaced; choose another folder with -o")
    return embedded_scene(path)
