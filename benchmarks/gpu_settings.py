"""Settings of `benchmarks.gpu` that its parts share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from benchmarks.report import setting

TRIED = setting("GPU_TRY", "") == "1"
DEVICE = "cpu" if TRIED else "cuda"
DTYPE = "bfloat16"
SIDE = int(setting("GPU_SIDE", "512" if TRIED else "8192"))
"""Height and width of the scene in pixels."""
BATCH = 4 if TRIED else 64
"""Tiles of a forward, bare and served."""
COMPILED_BATCH = min(BATCH, 32)
"""The largest batch that `compile` compiles."""
ROUNDS = 1 if TRIED else 5


@dataclass(frozen=True)
class Bench:
    """A scene file and model folders, which are made when the first part asks for them."""

    folder: Path

    @cached_property
    def scene(self) -> str:
        """The path of the scene."""
        from benchmarks.scene_files import make_scene

        return str(make_scene(self.folder, SIDE, "tiled").path)

    @property
    def networks(self) -> Mapping[str, Mapping[str, Any]]:
        """The networks by name, see `benchmarks.gpu_model.NETWORKS`."""
        from benchmarks.gpu_model import NETWORKS, TINY

        return TINY if TRIED else NETWORKS

    @property
    def first(self) -> str:
        """The name of the network that parts use which measure only one."""
        return next(iter(self.networks))

    @cache  # noqa: B019 - there is one object, which lives as long as the run
    def model(self, network: str) -> str:
        """Return the path of the model folder of a network."""
        from benchmarks.gpu_model import write_folder

        name = "".join(letter if letter.isalnum() else "-" for letter in network)
        return write_folder(self.folder / name, self.networks[network], DTYPE)


@dataclass(frozen=True)
class Clock:
    """The end of a part, as a time of ``time.monotonic()``."""

    end: float

    @property
    def over(self) -> bool:
        """Whether that time has come."""
        return time.monotonic() >= self.end

    def rounds(self, most: int = ROUNDS) -> Iterator[int]:
        """Yield 0 for a round that warms up, and then the numbers of at most ``most`` rounds while there is time.

        There is at least one round after the one that warms up.
        """
        for number in range(most + 1):
            if number > 1 and self.over:
                return
            yield number
