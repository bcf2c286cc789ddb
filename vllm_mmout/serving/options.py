"""Command-line options of the server: limits of requests, and the folders that it reads and writes."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Final

from vllm_mmout.errors import OptionError
from vllm_mmout.serving.inputs.prefixes import Prefixes

GROUP: Final = "vllm-mmout"
"""Title of the options' group in ``vllm serve --help=vllm-mmout``."""
PREFIX: Final = "mmout_"
"""Prefix of this package's options in the argparse namespace of ``vllm serve``."""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)", re.ASCII)
_BINARY_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])", re.ASCII)
_POWERS: Final = "kmgt"


def _size(text: str) -> int:
    """Parse a number with an optional unit, such as 500k or 1.5G. Upper-case units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip()) or _BINARY_SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write a number such as 500000, 500k, 64M or 1.5G")
    number, unit = match.groups()
    power = _POWERS.find(unit.lower()) + 1 if unit else 0
    return int(Fraction(number) * (1024 if unit.isupper() else 1000) ** power)


def _shown(count: int) -> str:
    """Format a number with the largest unit that divides it, such as 64M, so that `_size` can parse it."""
    for base, units in ((1024, _POWERS.upper()), (1000, _POWERS)):
        for power in range(len(units), 1, -1):
            if count % base**power == 0:
                return f"{count // base**power}{units[power - 1]}"
    return str(count)


def _count(default: int, help_text: str) -> int:
    return field(default=default, metadata={"type": _size, "metavar": "N", "help": help_text})


def _seconds(help_text: str, default: float = 60.0) -> float:
    return field(default=default, metadata={"type": float, "metavar": "SECONDS", "help": help_text})


def _folders(use: str) -> tuple[str, ...]:
    text = f"folder in a bucket (s3://bucket/folder/) below which files are {use}; repeat it for more, by default none"
    return field(default=(), metadata={"action": "append", "metavar": "ADDRESS", "help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Limits and folders of the server, each set by a command-line flag."""

    max_upload: int = _count(1 << 30, "bytes of one request's body")
    max_pixels: int = _count(
        500_000_000, "pixels (height x width) of one input, looked at before any is decoded, or of the map of a mosaic"
    )
    max_tiles: int = _count(4096, "tiles that one request may be cut into")
    max_made_pixels: int = _count(1 << 21, "pixels (width x height) of a picture or video that a request may ask for")
    max_steps: int = _count(1000, "steps (num_inference_steps) that a request may ask for")
    max_seconds: float = _seconds("seconds of a video that a request may ask for")
    max_area: float | None = field(
        default=None,
        metadata={
            "type": float,
            "metavar": "KM2",
            "help": "square kilometres that one input may cover on the ground, where it has a place; by default any",
        },
    )
    max_waiting: int = _count(64, "requests that are being read, run or answered at once; further ones get 429")
    max_answer: int = _count(1 << 30, "bytes of one answer's results in memory, looked at before they are encoded")
    max_results: int = _count(4 << 30, "bytes of all stored results together; the oldest go first")
    max_scenes: int = _count(256, "jobs (/v1/scenes) of all servers that wait or run; further ones get 429")
    max_scene_bytes: int = _count(16 << 30, "bytes of the files that these hold together")
    receive_timeout: float = _seconds("time within which the next piece of a request's body must come")
    send_timeout: float = _seconds("time within which a client must take the next piece of its answer")
    result_ttl: float = _seconds("time that a stored result can be fetched", 3600.0)
    read_from: tuple[str, ...] = _folders("read: requests may name them, and they are read by the server's credentials")
    write_to: tuple[str, ...] = _folders("written: a request may name one as the path of its result")
    output_root: str | None = field(
        default=None,
        metadata={
            "metavar": "FOLDER",
            "help": "folder below which requests to the plugin mmout may have results written; by default none",
        },
    )
    trace: str | None = field(
        default=None,
        metadata={
            "metavar": "FILE",
            "help": "file that tells where the time of each request and tile goes, for ui.perfetto.dev; made anew",
        },
    )
    results_dir: str | None = field(
        default=None,
        metadata={
            "metavar": "FOLDER",
            "help": "where stored results and jobs lie; by default a temporary folder that goes with the server",
        },
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.metadata["metavar"] == "ADDRESS":
                Prefixes.of(value, flag(option.name))
            if option.metadata["metavar"] == "N" and value < 1:
                raise OptionError(f"{flag(option.name)} must be at least 1, got {value}")
            if option.metadata["metavar"] == "KM2" and value is not None and not (math.isfinite(value) and value > 0):
                raise OptionError(
                    f"{flag(option.name)} must be a finite number of square kilometres above 0, got {value}"
                )
            if option.metadata["metavar"] == "SECONDS" and not (math.isfinite(value) and value > 0):
                raise OptionError(f"{flag(option.name)} must be a finite number of seconds above 0, got {value}")
        if self.results_dir == "":
            raise OptionError(f"{flag('results_dir')} must be a folder, got ''; leave it out for a temporary one")

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the server's flags to a parser, in a help group of their own."""
        group = parser.add_argument_group(
            GROUP, "Limits of the image routes. Sizes take k, m, g, t (powers of 1000) or K, M, G, T (powers of 1024)."
        )
        shown: dict[str, Callable[[Any], str]] = {"N": _shown, "SECONDS": "{:g}".format}
        for option in fields(ServingOptions):
            show = shown.get(option.metadata["metavar"])
            default = argparse.SUPPRESS if show is None else show(option.default)
            group.add_argument(flag(option.name), default=default, **option.metadata)

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> ServingOptions:
        """Return the options in parsed command-line arguments. Missing arguments get their defaults."""
        names = [option.name for option in fields(cls)]
        values: dict[str, Any] = {name: getattr(args, PREFIX + name) for name in names if hasattr(args, PREFIX + name)}
        several = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **several})


def flag(name: str) -> str:
    """Return the command-line flag of a field, such as ``--mmout-max-tiles`` for "max_tiles"."""
    return f"--{PREFIX}{name}".replace("_", "-")
