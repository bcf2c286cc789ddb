"""World files: six numbers beside a raster that say where it lies (Esri; as GDAL reads them)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vllm_mmout.errors import InputError
from vllm_mmout.raster.sidecars.neighbours import REMEDY

if TYPE_CHECKING:
    from vllm_mmout.raster.placement import Affine
    from vllm_mmout.raster.shared_file import SharedFile
    from vllm_mmout.raster.sidecars.neighbours import Neighbours

_LONGEST = 2**12
"""Bytes that are looked at."""


def read_world_file(neighbours: Neighbours) -> Affine | None:
    """The transform that a world file says, None where there is none.

    Of ``scene.tif`` it is called ``scene.tfw``, ``scene.tifw`` or ``scene.wld``.

    Raises:
        InputError: there is one, and it does not hold six numbers that span an area.

    """
    file = find_world_file(neighbours)
    if file is None:
        return None
    try:
        text = file.read_at(0, _LONGEST).decode("utf-8-sig", "replace")
    finally:
        file.close()
    lines = [line.split()[0] for line in text.splitlines() if line.strip()]
    try:
        a, d, b, e, x, y = (float(line.replace(",", ".")) for line in lines[:6])
    except ValueError:
        raise _wrong(file.name, neighbours.name, f"begins with {text[:40]!r}") from None
    if not all(map(math.isfinite, (a, d, b, e, x, y))) or a * e == b * d:
        raise _wrong(file.name, neighbours.name, f"has the numbers {(a, d, b, e, x, y)}, in which pixels have no area")
    return a, b, x - 0.5 * a - 0.5 * b, d, e, y - 0.5 * d - 0.5 * e


def find_world_file(neighbours: Neighbours) -> SharedFile | None:
    """The world file of a raster, opened: its suffix is that of the raster with a w, in short, or in full, or wld."""
    stem, _, suffix = neighbours.name.rpartition(".")
    own = [f".{suffix[0]}{suffix[-1]}w", f".{suffix}w"] if stem and len(suffix) > 1 else []
    return neighbours.replaced([*own, ".wld"])


def _wrong(name: str, raster: str, fact: str) -> InputError:
    return InputError(f"{name}, the world file of {raster}, must hold six numbers, one a line, and {fact}; {REMEDY}")
