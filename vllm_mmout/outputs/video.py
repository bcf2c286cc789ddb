"""VideoOutput, the output of models that generate video."""

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
"""Exact broadcast frame rates such as 30000/1001, which are commonly written as rounded decimals (29.97)."""
_CHANNELS = 3
_AXES = 4  # frames, rows, columns, channels


class VideoOutput(MediaOutput):
    """A video without sound.

    File formats are .mp4 (H.264, needs ``pip install "vllm-mmout[video]"``), .webp and .gif, which browsers play as
    animated pictures, and .npz with ``frames`` and ``fps``. H.264 needs even sides, so an odd side gets its last row or
    column twice. H.264 and the 256 colours of GIF are lossy. The duration of a frame is a multiple of 10 ms in GIF and
    of 1 ms in WebP.

    Args:
        frames: RGB frames, uint8 [frames, height, width, 3].
        fps: frames per second, 0.01 to 1000. A rounded broadcast rate such as 29.97 means the exact rate (30000/1001).

    Raises:
        InputError: the frames have a wrong dtype or shape, or are empty, or ``fps`` is out of range.

    """

    output_kinds: ClassVar[tuple[str, ...]] = ("video",)
    formats: ClassVar[dict[str, str]] = formats_of("video", first="mp4")

    def __init__(self, frames: NDArray[np.uint8], fps: float) -> None:
        array = as_numpy(frames)
        if array.dtype != np.uint8 or array.ndim != _AXES or array.shape[3] != _CHANNELS or array.size == 0:
            raise InputError(
                f"VideoOutput takes uint8 [frames, height, width, 3], not empty; got {array.dtype} {list(array.shape)}"
            )
        self.frames: NDArray[np.uint8] = array
        self.fps = checked_fps(fps)
        self.path = None

    @property
    def image(self) -> Image:
        """First frame, as a Pillow image of mode RGB."""
        from PIL import Image

        return Image.fromarray(np.ascontiguousarray(self.frames[0]))

    @property
    def rate(self) -> Fraction:
        """Frame rate as an exact fraction, for example 30000/1001 for an ``fps`` of 29.97.

        It is a broadcast rate if ``fps`` is within 0.005 of that rate.
        """
        near = Fraction(self.fps).limit_denominator(1001)
        return next((rate for rate in _BROADCAST if abs(self.fps - rate) < 0.005), near)

    @property
    def duration(self) -> float:
        """Duration in seconds."""
        return float(len(self.frames) / self.rate)

    @property
    def nbytes(self) -> int:
        """Size of the frames in memory, in bytes."""
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
    """Convert a number of frames per second to float. Raise InputError unless it is from 0.01 to 1000."""
    is_number = isinstance(fps, int | float | Fraction | np.integer | np.floating) and not isinstance(fps, bool)
    if not is_number or not _FPS[0] <= float(fps) <= _FPS[1]:  # type: ignore[arg-type] # NaN fails the comparison
        raise InputError(f"fps must be a number of {_FPS[0]} to {_FPS[1]:g} frames a second, got {fps!r}")
    return float(fps)  # type: ignore[arg-type]
