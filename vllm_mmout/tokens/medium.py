"""Medium: one picture or sound as it was found among the output tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Medium:
    """The codes of one picture or sound, and the tokens that it takes."""

    start: int
    """The first output token that it takes, its begin marker included."""
    stop: int
    """One past the last, its end marker included: ``output_token_ids[start:stop]``; where the layout has text inside
    media, also that between them."""
    codes: tuple[NDArray[np.int64], ...]
    """One array a codebook: of an image [rows, columns], of a sound [n_k]; whole rows and whole frames only."""
    complete: bool
    """False: the stream ended, or left it, before it was whole."""
    grid: tuple[int, int] | None = None
    """Rows and columns that an image has when it is whole; None: not known, or a sound."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Medium):
            return NotImplemented
        return (
            (self.start, self.stop, self.complete, self.grid) == (other.start, other.stop, other.complete, other.grid)
            and len(self.codes) == len(other.codes)
            and all(map(np.array_equal, self.codes, other.codes))
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have none either
