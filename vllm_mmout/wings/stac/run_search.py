"""Flags of ``vllm-mmout run`` that search a STAC catalogue. The items that are found become the inputs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from vllm_mmout.commands.run import RunInput, run_inputs
from vllm_mmout.errors import OptionError
from vllm_mmout.geo import in_bucket, is_folder

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams

_FLAGS: Final = ("stac", "collections", "datetime", "stac_dates", "stac_collection", "max_items")
_DEGREES: Final = "EPSG:4326"
_MAX_COORDINATE: Final = 1e9
"""Maximum absolute value of a bounding box's coordinates. PROJ may need minutes to transform larger values."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a STAC search to the parser of ``vllm-mmout run``."""
    group = parser.add_argument_group(
        "inputs from a STAC catalogue",
        "Run the model on the items that a search finds. --bbox or --aoi chooses the items and the part of each that is"
        ' read, --bbox in degrees if --bbox-crs is not given. Needs the extra: pip install "vllm-mmout[stac]".',
    )
    group.add_argument(
        "--stac",
        action="store_true",
        default=None,
        help="search INPUT, which is the address of a STAC API, or the address or path of a static catalogue",
    )
    group.add_argument("--collections", metavar="LIST", help="ids of collections, with commas; by default all")
    group.add_argument("--datetime", metavar="WHEN", help="date, month, year, or interval 2024-06-01/2024-06-30")
    group.add_argument("--max-items", type=int, metavar="N", help="most items that the search may find (1000)")
    group.add_argument(
        "--stac-dates",
        action="store_true",
        default=None,
        help="give all items as one input, in the order of their dates, to a model that takes several dates",
    )
    group.add_argument(
        "--stac-collection",
        action="store_true",
        default=None,
        help="write a STAC item of each result, and collection.json into the folder of -o if no input failed",
    )


def asked(options: argparse.Namespace) -> list[str]:
    """Return the search flags that the user set, such as "--stac"."""
    return [f"--{name.replace('_', '-')}" for name in _FLAGS if getattr(options, name) is not None]


def run(options: argparse.Namespace, params: OutputParams) -> int:
    """Search a STAC catalogue, run the model on the items, and return the exit status."""
    if options.stac is None:
        raise OptionError(f"{', '.join(asked(options))} is for a search; add --stac")
    if len(options.inputs) != 1:
        raise OptionError(f"--stac searches one catalogue, and INPUT names {len(options.inputs)}; leave out the others")
    from vllm_mmout.wings.stac.folder_collections import NAME, collection
    from vllm_mmout.wings.stac.searching import search

    if options.stac_collection:
        if in_bucket(options.out):
            raise OptionError(f"-o {options.out} is in a bucket; --stac-collection is for folders on this machine")
        params = msgspec.structs.replace(params, stac_item=True)
    box = None
    if params.bbox is not None:
        params = msgspec.structs.replace(params, bbox_crs=params.bbox_crs or _DEGREES)
        box = _bbox_in_degrees(params)
    limits: dict[str, Any] = {} if options.max_items is None else {"max_items": options.max_items}
    collections = None if options.collections is None else options.collections.split(",")
    items = search(
        options.inputs[0], collections=collections, datetime=options.datetime, bbox=box, aoi=params.aoi, **limits
    )
    print(
        f"{len(items)} items: {', '.join(item.id for item in items[:10])}{' ...' * (len(items) > 10)}", file=sys.stderr
    )
    inputs: list[Any] = [items] if options.stac_dates else items
    status = run_inputs(options, params, [RunInput(each) for each in inputs])
    if options.stac_collection and not status:
        out = Path(options.out)
        folder = out if is_folder(options.out) or out.is_dir() else out.parent
        collection(folder)
        print(folder / NAME)
    return status


def _bbox_in_degrees(params: OutputParams) -> tuple[float, float, float, float]:
    """Convert the bounding box of a request to degrees."""
    from rasterio.warp import transform_bounds

    from vllm_mmout.geo import rasterio_crs

    box = cast("tuple[float, float, float, float]", params.bbox)
    if max(map(abs, box)) > _MAX_COORDINATE:  # PROJ would take minutes for such numbers in some systems
        raise OptionError(f"bbox must lie on Earth, got {box}; correct it or bbox_crs", param="bbox")
    bounds = transform_bounds(rasterio_crs(params.bbox_crs or _DEGREES), rasterio_crs(_DEGREES), *box)
    west, south, east, north = map(float, bounds)
    return west, south, east, north
