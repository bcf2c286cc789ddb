"""Sizes of pictures: what a client's ``size`` means in the rows and columns of a model's tokens."""

from __future__ import annotations

import re
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from vllm_mmout.messages import shown
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.wings.tokens.layouts import Medium
from vllm_mmout.wings.tokens.processors.base import TokenProcessor
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate

AUTO: Final = "auto"
_SIZE: Final = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})", re.ASCII)
_TRIED: Final = (2, 2)
"""Rows and columns of the picture by which a decoder of any size is measured."""


class Grid(NamedTuple):
    """Cells of a picture, each a place of its tokens."""

    rows: int
    columns: int


class Cell(NamedTuple):
    """Pixels that a decoder makes of one cell."""

    width: int
    height: int

    def size(self, grid: Grid) -> str:
        """The size of a picture, as clients write it."""
        return f"{grid.columns * self.width}x{grid.rows * self.height}"


class Sizes:
    """What sizes a model has."""

    def __init__(self, processor: TokenProcessor, template: PromptTemplate) -> None:
        self._processor = processor
        self._fixed = None if processor.layout.grid is None else Grid(*processor.layout.grid)
        self._told = {"rows", "columns"} <= template.names
        """Whether the prompt tells the model how large a picture it is to make."""
        rows, columns = template.default("rows"), template.default("columns")
        self._usual = self._fixed or (Grid(int(rows), int(columns)) if rows and columns else None)
        self._cell: Cell | str | None = None
        """Or why there is none."""
        self._lock = Lock()

    def grid(self, size: str) -> Grid | None:
        """The rows and columns of a picture, None where the model alone decides.

        The first one that is not "auto" may run the decoder once, so it blocks.
        """
        if size == AUTO:
            if self._usual is None and self._told:
                raise _wrong("size must be WIDTHxHEIGHT: this model is told how large a picture to make")
            return self._usual
        match = _SIZE.fullmatch(size)
        if match is None:
            raise _wrong(f"size must be auto or WIDTHxHEIGHT, got {shown(size)}")
        width, height = int(match[1]), int(match[2])
        if self._fixed is None and not self._told:
            raise _wrong(f"size must be auto, got {size}: this model itself decides how large its pictures are")
        cell = self.cell()
        if self._fixed is not None:
            if size != cell.size(self._fixed):
                raise _wrong(f"size must be auto or {cell.size(self._fixed)}, got {size}: all pictures have that size")
            return self._fixed
        if width % cell.width or height % cell.height:
            raise _wrong(
                f"size must be auto, or a width in steps of {cell.width} and a height in steps of {cell.height} pixels,"
                f" got {size}"
            )
        return Grid(height // cell.height, width // cell.width)

    def cell(self) -> Cell:
        """Pixels of a cell, found by decoding a picture once; blocks."""
        with self._lock:
            if self._cell is None:
                self._cell = self._measured()
        if isinstance(self._cell, str):
            raise _wrong(self._cell)
        return self._cell

    def _measured(self) -> Cell | str:
        rows, columns = self._fixed or _TRIED
        layout = self._processor.layout
        codes = tuple(np.zeros((rows, columns), np.int64) for _ in range(layout.codebooks))
        medium = Medium(0, layout.tokens_of(rows, columns), codes, complete=True, grid=(rows, columns))
        picture = self._processor.decode(medium, OutputParams())
        width, height = getattr(picture, "width", 0), getattr(picture, "height", 0)
        if not (width and height) or width % columns or height % rows:
            return (
                f"size must be auto: {type(self._processor).__name__} makes of {rows} rows of {columns} codes a picture"
                f" of {width} x {height} pixels, which is no whole number for a code"
            )
        return Cell(width // columns, height // rows)


def _wrong(message: str) -> ApiError:
    return ApiError(400, message, param="size")
