"""ImageOutput, the output of models that generate pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.outputs.base import MediaOutput, as_numpy
from vllm_mmout.outputs.formats import formats_of

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {3: "RGB", 4: "RGBA"}


class ImageOutput(MediaOutput):
    """Picture that a model generated, with 8 bits per channel: grey, RGB or RGBA.

    Args:
        array: uint8 [height, width] (grey), [height, width, 3] (RGB) or [height, width, 4] (RGBA).

    Raises:
        InputError: the array has a wrong dtype or shape, or is empty.

    """

    output_kinds: ClassVar[tuple[str, ...]] = ("image",)
    formats: ClassVar[dict[str, str]] = formats_of("image")

    def __init__(self, array: NDArray[np.uint8]) -> None:
        samples = as_numpy(array)
        shape_is_valid = samples.ndim == 2 or (samples.ndim == 3 and samples.shape[2] in _MODES)
        if samples.dtype != np.uint8 or not shape_is_valid or samples.size == 0:
            raise InputError(
                "ImageOutput takes uint8 [height, width], [height, width, 3] or [height, width, 4], not empty;"
                f" got {samples.dtype} {list(samples.shape)}"
            )
        self.array: NDArray[np.uint8] = samples
        self.path = None

    @property
    def image(self) -> Image:
        """Pillow image of mode L, RGB or RGBA."""
        from PIL import Image

        return Image.fromarray(np.ascontiguousarray(self.array))

    @property
    def nbytes(self) -> int:
        """Size of the pixels in memory, in bytes."""
        return self.array.nbytes

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.array.shape[1])

    @property
    def height(self) -> int:
        """Number of rows."""
        return int(self.array.shape[0])

    @property
    def mode(self) -> str:
        """Pillow's mode of the picture: "L" (grey), "RGB" or "RGBA"."""
        return "L" if self.array.ndim == 2 else _MODES[self.array.shape[2]]

    def __repr__(self) -> str:
        where = f", path={self.path!r}" if self.path else ""
        return f"ImageOutput({self.width} x {self.height} {self.mode}{where})"

    def _repr_png_(self) -> bytes:
        return self.to_bytes("png")
