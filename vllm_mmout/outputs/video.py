"""VideoOutput: pictures of one size, one after the other."""

from __future__ import annotations

import base64
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.outputs.base import MediaOutput, as_numpy
from vllm_mmout.outputs.formats import formats_of

if TYPE_CHECKING:
    from PIL.Image import Image

_FPS = (0.01, 1000.0)
_BROADCAST = [Fraction(whole * 1000, 1001) for whole in (24, 30, 48, 60, 120)]
"""Rates that people round when they write them."""
_CHANNELS = 3
_AXES = 4  # frames, rows, columns, channels


class VideoOutput(MediaOutput):
    """A video without sound.

    Files are .mp4 (H.264, with the extra: ``pip install "vllm-mmout[video]"``), .webp and .gif, which browsers play as
    pictures, and .npz with ``frames`` and ``fps``. H.264 has even sides: the last row or column of an odd one is there
    twice. It and GIF's 256 colours are lossy. GIF and WebP count time in steps of 10 ms and 1 ms.

    Args:
        frames: uint8 [frames, height, width, 3], RGB.
        fps: frames a second, 0.01 to 1000; 29.97 and the like are taken as they are meant (30000/1001).

    Raises:
        InputError: the frames have another dtype or shape, or are empty, or ``fps`` is out of range.

    """

    output_kinds: ClassVar[tuple[str, ...]] = ("video",)
    formats: ClassVar[dict[str, str]] = formats_of("video", first="mp4")

    def __init__(self, frames: NDArray[np.uint8], fps: float) -> None:
        given = as_numpy(frames)
        if given.dtype != np.uint8 or given.ndim != _AXES or given.shape[3] != _CHANNELS or given.size == 0:
            raise InputError(
                f"VideoOutput takes uint8 [frames, height, width, 3], not empty; got {given.dtype} {list(given.shape)}"
            )
        self.frames: NDArray[np.uint8] = given
        self.fps = checked_fps(fps)
        self.path = None

    @property
    def image(self) -> Image:
        """The first frame as Pillow has it: mode RGB."""
        from PIL import Image

        return Image.fromarray(np.ascontiguousarray(self.frames[0]))

    @property
    def rate(self) -> Fraction:
        """The same as ``fps``, exactly."""
        near = Fraction(self.fps).limit_denominator(1001)
        return next((rate for rate in _BROADCAST if abs(self.fps - rate) < 0.005), near)

    @property
    def duration(self) -> float:
        """Seconds."""
        return float(len(self.frames) / self.rate)

    @property
    def nbytes(self) -> int:
        """Bytes of the frames, from shape and dtype."""
        return self.frames.nbytes

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.frames.shape[2])

    @property
    def height(self) -> int:
        """Number of rows."""
        return int(self.frames.shape[1])

    def __repr__(self) -> str:
        where = f", path={self.path!r}" if self.path else ""
        return f"VideoOutput({self.duration:g} s, {self.width} x {self.height}, {self.fps:g} fps{where})"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.to_bytes("mp4")).decode()
        return f'<video controls loop src="data:video/mp4;base64,{data}"></video>'


def checked_fps(fps: object) -> float:
    """Frames a second, checked."""
    number = isinstance(fps, int | float | Fraction | np.integer | np.floating) and not isinstance(fps, bool)
    if not number or not _FPS[0] <= float(fps) <= _FPS[1]:  # type: ignore[arg-type] # NaN is not
        raise InputError(f"fps must be a number of {_FPS[0]} to {_FPS[1]:g} frames a second, got {fps!r}")
    return float(fps)  # type: ignore[arg-type]
