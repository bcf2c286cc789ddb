"""Convert the size of a picture in pixels, as clients send it, to rows and columns of the model's tokens."""

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
_TEST_GRID: Final = (2, 2)
"""Rows and columns of codes of the test picture that is decoded to measure the pixels per code."""


class Grid(NamedTuple):
    """Numbers of rows and columns of a picture's codes. Each cell of this grid is decoded to a block of pixels."""

    rows: int
    columns: int


class Cell(NamedTuple):
    """Size in pixels of the part of a picture that is decoded from one position of its code grid."""

    width: int
    height: int

    def size(self, grid: Grid) -> str:
        """Return the size of a picture with the rows and columns of ``grid``, as WIDTHxHEIGHT in pixels."""
        return f"{grid.columns * self.width}x{grid.rows * self.height}"


class Sizes:
    """Picture sizes that a model supports."""

    def __init__(self, processor: TokenProcessor, template: PromptTemplate) -> None:
        self._processor = processor
        self._fixed = None if processor.layout.grid is None else Grid(*processor.layout.grid)
        self._prompt_has_size = {"rows", "columns"} <= template.names
        """Whether the prompt can state the size of the picture, because its template has placeholders for rows and
        columns."""
        rows, columns = template.default("rows"), template.default("columns")
        self._usual = self._fixed or (Grid(int(rows), int(columns)) if rows and columns else None)
        self._cell: Cell | str | None = None
        """Size in pixels of the block that one code is decoded to. None until this size is measured.

        If codes are not decoded to blocks of equal size, the attribute is the error message for the client.
        """
        self._lock = Lock()

    def grid(self, size: str) -> Grid | None:
        """Return the rows and columns of codes for a picture of ``size`` pixels, or None if the model decides.

        The first call with a size other than "auto" may block while it decodes a test picture.
        """
        if size == AUTO:
            if self._usual is None and self._prompt_has_size:
                raise _wrong("size must be WIDTHxHEIGHT: the prompt of this model must tell it the size of the picture")
            return self._usual
        match = _SIZE.fullmatch(size)
        if match is None:
            raise _wrong(f"size must be auto or WIDTHxHEIGHT, got {shown(size)}")
        width, height = int(match[1]), int(match[2])
        if self._fixed is None and not self._prompt_has_size:
            raise _wrong(f"size must be auto, got {size}: this model itself decides the size of its pictures")
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
        """Return the width and height in pixels that one code is decoded to. The first call decodes a test picture."""
        with self._lock:
            if self._cell is None:
                self._cell = self._measured()
        if isinstance(self._cell, str):
            raise _wrong(self._cell)
        return self._cell

    def _measured(self) -> Cell | str:
        rows, columns = self._fixed or _TEST_GRID
        layout = self._processor.layout
        codes = tuple(np.zeros((rows, columns), np.int64) for _ in range(layout.codebooks))
        medium = Medium(0, layout.tokens_of(rows, columns), codes, complete=True, grid=(rows, columns))
        picture = self._processor.decode(medium, OutputParams())
        width, height = getattr(picture, "width", 0), getattr(picture, "height", 0)
        if not (width and height) or width % columns or height % rows:
            return (
                f"size must be auto: {type(self._processor).__name__} makes a picture of {width} x {height} pixels"
                f" from {rows} rows of {columns} codes, which is not a whole number of pixels per code"
            )
        return Cell(width // columns, height // rows)


def _wrong(message: str) -> ApiError:
    return ApiError(400, message, param="size")
