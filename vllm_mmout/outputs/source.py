"""Source: the input that an output was made from, as far as outputs care."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from vllm_mmout.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from vllm_mmout.raster.georeference import Georeference


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What an output needs to know to be laid on its input; two are equal only if they are the same object.

    Raises:
        InputError: a size is not two positive integers, or ``valid`` is no mask of the input.

    """

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


def _checked_size(name: str, size: object) -> tuple[int, int] | None:
    """Height and width as plain integers."""
    if size is None:
        return None
    if isinstance(size, tuple | list) and len(size) == 2 and all(_is_count(number) for number in size):
        return (int(size[0]), int(size[1]))
    raise InputError(f"{name} must be (height, width), two integers of 1 or more, got {size!r}")


def _is_count(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and int(number) >= 1
