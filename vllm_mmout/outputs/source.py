"""Source: the input that an output was made from, and what it takes to lay one on it: masking and metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from vllm_mmout.geo.raster.georeference import Georeference


_NOT_OF_THE_RESULT = frozenset(
    {"TIFFTAG_SOFTWARE", "TIFFTAG_IMAGEDESCRIPTION", "TIFFTAG_DOCUMENTNAME", "TIFFTAG_HOSTCOMPUTER"}
)
"""Items that speak of the input's file, not of what was observed."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What an output needs to know to be laid on its input; two are equal only if they are the same object."""

    size: tuple[int, int] | None = None
    """(height, width) of the input in pixels, as the user gave it; that of ``valid`` if left out. None: no pixels."""
    seen: tuple[int, int] | None = None
    """(height, width) of what the model saw, where it was resized on the way; None: the same as ``size``."""
    georeference: Georeference | None = None
    """Where the input's pixels lie."""
    valid: NDArray[np.bool_] | None = None
    """[height, width], False where the input has no observation; None: everywhere valid."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Items of the input (date, sensor) that its outputs carry on."""
    picture: Callable[[], Image] | None = None
    """Draws the input (RGB, of ``size``) for outputs that are shown over it; called when one is shown."""

    def __post_init__(self) -> None:
        for name in ("size", "seen"):
            object.__setattr__(self, name, _checked_size(name, getattr(self, name)))
        if self.valid is None:
            return
        if self.valid.dtype != np.bool_ or self.valid.ndim != 2:
            raise InputError(f"valid must be bool [height, width], got {self.valid.dtype} {list(self.valid.shape)}")
        if self.size is None:
            object.__setattr__(self, "size", _checked_size("size", self.valid.shape))
        if self.valid.shape != self.size:
            raise InputError(
                f"valid must have the input's size {self.size}, got {self.valid.shape}; give the mask of that input"
            )

    def made_by(self, model: str, processor: str) -> Source:
        """The same source; what is laid on it says by which model and processor it was made."""
        return replace(self, metadata={**self.metadata, "MMOUT_MODEL": model, "MMOUT_PROCESSOR": processor})


def masked(array: NDArray[Any], nodata: float | None, valid: NDArray[np.bool_]) -> tuple[NDArray[Any], float | None]:
    """A copy of [bands, height, width] with nodata where ``valid``, bool [height, width], is False; and its nodata.

    Without a nodata one is found that no pixel has.
    """
    if valid.all():
        return array, nodata
    pixels = array.astype(np.uint8) if array.dtype == np.bool_ else array.copy()
    value = _free_value(pixels) if nodata is None else nodata
    pixels[:, ~valid] = value
    return pixels, value


def resized_mask(valid: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    """A mask [height, width] of the same extent in another size: each pixel takes the one that its centre lies in."""
    if valid.shape == size:
        return valid
    rows, cols = (_nearest(old, new) for old, new in zip(valid.shape, size, strict=True))
    return valid[rows[:, np.newaxis], cols]


def merged(source: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The items of the input that hold for the result as well, under those of the result."""
    return {**{name: text for name, text in source.items() if name not in _NOT_OF_THE_RESULT}, **own}


def _checked_size(name: str, size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, tuple | list) and len(size) == 2 and all(_is_count(number) for number in size):
        return (int(size[0]), int(size[1]))
    raise InputError(f"{name} must be (height, width), two integers of 1 or more, got {size!r}")


def _is_count(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and int(number) >= 1


def _nearest(old: int, new: int) -> NDArray[np.intp]:
    """For each of ``new`` pixels along an axis the one of ``old`` that its centre lies in, in exact arithmetic."""
    return (2 * np.arange(new) + 1) * old // (2 * new)


def _free_value(pixels: NDArray[Any]) -> float:
    """A value that can mean nodata: NaN, or the largest integer if no pixel has it."""
    if pixels.dtype.kind == "f":
        return math.nan
    largest = int(np.iinfo(pixels.dtype).max)
    if (pixels == largest).any():
        raise InputError(
            f"the result is {pixels.dtype}, has no nodata, and uses {largest}, which would mean it;"
            " give the output a nodata of its own"
        )
    return largest
