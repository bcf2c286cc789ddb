"""`Part`: a decoded part of a request, such as a tile of a scene."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from vllm_mmout.geo import Window


@dataclass(frozen=True, slots=True)
class Part:
    """A decoded part of a user's request, as passed to ``assemble``."""

    index: int
    """Index of the part within the request, from 0."""
    window: Window | None
    """Window of the part in the input, or in the requested ``window`` of it, or None for an input without pixels."""
    output: Any
    """Return value of ``decode``, or None if the part holds no observation and was not sent to the model."""
    valid: NDArray[np.bool_] | None = None
    """bool [height, width] of the window, False where the input holds no observation, or None if all of it is valid."""
