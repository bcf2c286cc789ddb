"""Define `InputPicture`, which reads a request's input again and returns the input as a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


class InputPicture:
    """Function that reads the input of a result again and returns the input as a picture.

    The result is drawn over this picture. Results keep this function in place of the pixels of their input. Call it in
    the process that read the input: it returns None in any other process, because a pickled copy does not know the
    input.
    """

    def __init__(self, read: Callable[[], Image | None] | None = None) -> None:
        self._read = read

    def __call__(self) -> Image | None:
        """Read the input, and return its picture. Raise InputError if its file is gone or damaged."""
        return None if self._read is None else self._read()

    def __reduce__(self) -> tuple[type[InputPicture], tuple[()]]:
        return InputPicture, ()
