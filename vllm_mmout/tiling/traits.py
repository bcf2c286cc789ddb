"""Traits: what all tiles of one raster have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import DecodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.outputs import RasterOutput


@dataclass(frozen=True, slots=True, eq=False)
class Traits:
    """What a `RasterOutput` is beside its pixels, its size and its place."""

    bands: int
    dtype: np.dtype[Any]
    nodata: float | None
    band_names: tuple[str | None, ...]
    units: tuple[str | None, ...]
    class_names: tuple[str, ...] | None
    palette: NDArray[np.uint8] | None

    @classmethod
    def of(cls, output: RasterOutput) -> Traits:
        """Those of an output."""
        return cls(
            output.count,
            output.array.dtype,
            output.nodata,
            output.band_names,
            output.units,
            output.class_names,
            output.palette,
        )

    def check(self, output: RasterOutput) -> None:
        """Refuse an output that has others.

        Raises:
            DecodeError: one differs, and which.

        """
        others = Traits.of(output)
        for name in self.__slots__:
            mine, other = getattr(self, name), getattr(others, name)
            if mine is not other and not _same(mine, other):
                raise DecodeError(
                    f"tiles of one raster differ in {name}: {_said(mine)} in the first that came, {_said(other)} in"
                    " another; make it the same in all"
                )


def _same(one: Any, other: Any) -> bool:
    """Whether two traits are equal, NaN with NaN."""
    if one is None or other is None:
        return False
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - NaN alone differs from itself


def _said(trait: Any) -> str:
    return f"{len(trait)} colours" if isinstance(trait, np.ndarray) else f"{trait}"
