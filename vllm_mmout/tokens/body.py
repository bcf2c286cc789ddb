"""Body: the codes of one medium while they come, without its markers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.tokens.layout import TokenLayout


class Body(ABC):
    """Takes the tokens between two markers one by one; each order of codes has one.

    Args:
        layout: says which tokens fit.

    """

    over: bool
    """Whether no further token can fit: the medium has all that its grid, or its own codes, say that it has."""

    def __init__(self, layout: TokenLayout) -> None:
        self.over = False
        self._slots = layout.slots
        self._grid = layout.grid
        self._image = layout.modality == "image"
        self._tokens = array("q")  # codes, and padding where the order has it; no row ends

    @abstractmethod
    def take(self, token: int) -> bool:
        """Take a token if it fits here, and say whether it did."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """What fits here, in words."""

    @property
    @abstractmethod
    def may_end(self) -> bool:
        """Whether an end marker fits here."""

    @property
    def filled(self) -> bool:
        """Whether the last code has come, so that only row ends and markers can follow."""
        return self.over

    @property
    def whole(self) -> bool:
        """Whether all rows or frames that have begun are whole, for a medium that says nowhere how many it has."""
        return self.may_end

    @property
    def columns(self) -> int | None:
        """Columns of an image; None as long as they are not known."""
        return self._grid and self._grid[1]

    def codes(self) -> tuple[NDArray[np.int64], ...]:
        """The codes of all whole rows or frames, a codebook each: of an image [rows, columns], of a sound [n_k]."""
        frames = self._frames()
        if self._image:
            columns = self.columns or 0
            frames = frames[: len(frames) // columns * columns] if columns else frames[:0]
        books = []
        for book in range(max(slot.codebook for slot in self._slots) + 1):
            places = [place for place, slot in enumerate(self._slots) if slot.codebook == book]
            firsts = [self._slots[place].first for place in places]
            codes = frames[:, places] - np.array(firsts)
            books.append(codes.reshape((-1, columns or 1) if self._image else -1))
        return tuple(books)

    @abstractmethod
    def _frames(self) -> NDArray[np.int64]:
        """The tokens of all whole frames: [frames, slots]."""


def tokens_as_array(tokens: array[int], shape: tuple[int, int]) -> NDArray[np.int64]:
    """The first tokens as an array of a shape."""
    return np.array(tokens[: shape[0] * shape[1]], np.int64).reshape(shape)
