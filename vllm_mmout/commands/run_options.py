"""The flags of ``vllm-mmout run`` that are options of its requests."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from vllm_mmout.params import BLENDS, RESAMPLINGS

Item = TypeVar("Item")


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


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "processor": {"type": _names, "metavar": "NAME", "help": "output processor, or several separated by commas"},
    "output": {
        "metavar": "KIND",
        "help": "what the processor returns, as classes, probabilities, confidence, polygons, areas",
    },
    "bands": {
        "type": _list_of(_band),
        "metavar": "LIST",
        "help": "bands of the input in the model's order, numbers from 1 or names: 2,3,4",
    },
    "indices": {"type": _list_of(int), "metavar": "LIST", "help": "the same, counted from 0"},
    "nodata": {"type": float, "metavar": "VALUE", "help": "value of the input that means no observation"},
    "scale": {"type": _numbers, "metavar": "LIST", "help": "what values are multiplied by, one number or one a band"},
    "offset": {"type": _numbers, "metavar": "LIST", "help": "what is added to them then"},
    "window": {
        "type": _list_of(int),
        "metavar": "ROW,COL,HEIGHT,WIDTH",
        "help": "part of the input to use, in pixels from the upper left",
    },
    "bbox": {
        "type": _list_of(float),
        "metavar": "WEST,SOUTH,EAST,NORTH",
        "help": "part of the input to use, in coordinates; write --bbox=-1,... where the first is negative",
    },
    "bbox_crs": {"metavar": "CRS", "help": "coordinate system of --bbox, as EPSG:4326; by default the input's own"},
    "resampling": {
        "choices": RESAMPLINGS,
        "default": "nearest",
        "help": "how coarser bands of a folder are brought to the finest grid (nearest)",
    },
    "location": {
        "type": _list_of(float),
        "metavar": "LATITUDE,LONGITUDE",
        "help": "middle of the input in degrees, for models that take it; write --location=-1,... where the first is"
        " negative; by default as the input's georeference says",
    },
    "dates": {
        "type": _list_of(str),
        "metavar": "LIST",
        "help": "when each date of the input was taken, for models that take it: 2024-05-01; by default as the input"
        " says",
    },
    "means": {"type": _list_of(float), "metavar": "LIST", "help": "what is subtracted of each band"},
    "stds": {"type": _list_of(float), "metavar": "LIST", "help": "what each band is divided by then"},
    "tile": {"type": int, "metavar": "PIXELS", "help": "side of the tiles that larger inputs are cut into"},
    "overlap": {"type": int, "default": 0, "metavar": "PIXELS", "help": "what neighbouring tiles share"},
    "blend": {"choices": BLENDS, "default": "cosine", "help": "how they are averaged there (cosine)"},
    "simplify": {
        "type": float,
        "metavar": "PIXELS",
        "help": "how far borders of polygons may move to have fewer corners",
    },
}
"""What argparse is told of each, by its name in `OutputParams`, in the order of ``--help``."""


def flag(name: str) -> str:
    """What an option is called on the command line."""
    return f"--{name.replace('_', '-')}"
