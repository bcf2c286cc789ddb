"""ServingOptions: the limits of our routes, and the flags that set them."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Final

from vllm_mmout.errors import OptionError

GROUP: Final = "vllm-mmout"
"""Title of the flags' group, for ``--help=vllm-mmout``."""
PREFIX: Final = "mmout_"
"""What a field's name has before it in vLLM's namespace of arguments."""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)", re.ASCII)
_BINARY_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])", re.ASCII)
_POWERS: Final = "kmgt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """What one server of ours allows its clients."""

    max_upload: int = 1 << 30
    """Bytes of one request's body."""
    max_pixels: int = 500_000_000
    """Pixels, height times width, of one input, looked at before any is decoded."""
    max_tiles: int = 4096
    """Tiles that one request may be cut into."""
    max_waiting: int = 64
    """Requests that are being read, run or answered at once; further ones get 429."""
    receive_timeout: float = 60.0
    """Seconds within which the next piece of a request's body must come."""
    send_timeout: float = 60.0
    """Seconds within which a client must take the next piece of its answer."""
    result_ttl: float = 3600.0
    """Seconds that a stored result can be fetched."""
    max_results: int = 4 << 30
    """Bytes of all stored results together; the oldest go first."""
    max_scenes: int = 256
    """Jobs of all servers that wait or run; further ones get 429."""
    max_scene_bytes: int = 16 << 30
    """Bytes of the files that these hold together."""
    results_dir: str | None = None
    """Where stored results and jobs lie; None: in a temporary folder that goes with the server."""

    def __post_init__(self) -> None:
        """Refuse what allows nothing."""
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise OptionError(f"{flag(name)} must be at least 1, got {getattr(self, name)}")
        for name in _SECONDS:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise OptionError(f"{flag(name)} must be a finite number of seconds above 0, got {value}")
        if self.results_dir == "":
            raise OptionError(f"{flag('results_dir')} must be a folder, got ''; leave it out for a temporary one")

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Describe the flags, in a group of their own."""
        group = parser.add_argument_group(
            GROUP, "Limits of the image routes. Sizes take k, m, g, t (powers of 1000) or K, M, G, T (powers of 1024)."
        )
        defaults = ServingOptions()
        for name in _COUNTS:
            default = _shown(getattr(defaults, name))
            group.add_argument(flag(name), type=_size, default=default, metavar="N", help=_HELP[name])
        for name in _SECONDS:
            default = f"{getattr(defaults, name):g}"
            group.add_argument(flag(name), type=float, default=default, metavar="SECONDS", help=_HELP[name])
        group.add_argument(flag("results_dir"), default=argparse.SUPPRESS, metavar="FOLDER", help=_HELP["results_dir"])

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> ServingOptions:
        """Read the options out of a server's arguments; those that it does not have get their defaults."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: getattr(args, PREFIX + name) for name in names if hasattr(args, PREFIX + name)})


def flag(name: str) -> str:
    """The flag that sets a field, for messages."""
    return f"--{PREFIX}{name}".replace("_", "-")


_COUNTS: Final = (
    *("max_upload", "max_pixels", "max_tiles", "max_waiting", "max_results", "max_scenes", "max_scene_bytes"),
)
_SECONDS: Final = ("receive_timeout", "send_timeout", "result_ttl")
_HELP: Final = {
    "max_upload": "bytes of one request's body",
    "max_pixels": "pixels (height x width) of one input, looked at before any is decoded",
    "max_tiles": "tiles that one request may be cut into",
    "max_waiting": "requests that are being read, run or answered at once; further ones get 429",
    "max_results": "bytes of all stored results together; the oldest go first",
    "max_scenes": "jobs (/v1/scenes) of all servers that wait or run; further ones get 429",
    "max_scene_bytes": "bytes of the files that these hold together",
    "receive_timeout": "time within which the next piece of a request's body must come",
    "send_timeout": "time within which a client must take the next piece of its answer",
    "result_ttl": "time that a stored result can be fetched",
    "results_dir": "where stored results and jobs lie; by default a temporary folder that goes with the server",
}


def _size(text: str) -> int:
    """A count, with or without a unit; those of vLLM's own flags, but 1.5G may be written too."""
    match = _SIZE.fullmatch(text.strip()) or _BINARY_SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write a number such as 500000, 500k, 64M or 1.5G")
    number, unit = match.groups()
    power = _POWERS.find(unit.lower()) + 1 if unit else 0
    return int(Fraction(number) * (1024 if unit.isupper() else 1000) ** power)


def _shown(count: int) -> str:
    """A count as `_size` reads it: with the largest unit that divides it, millions at least."""
    for base, units in ((1024, _POWERS.upper()), (1000, _POWERS)):
        for power in range(len(units), 1, -1):
            if count % base**power == 0:
                return f"{count // base**power}{units[power - 1]}"
    return str(count)
