"""`VideoProcessor`, which turns the output of a model into RGB videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import DecodeError, InputError, OptionError, ReduceError
from vllm_mmout.outputs import VideoOutput
from vllm_mmout.outputs.video import checked_fps
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.quantising import checked_range, quantised
from vllm_mmout.processors.raw import describe, not_of_reduce, only_tensor, own_array

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw

_TAKES = "video output must be uint8 or floating point [n, frames, 3, height, width]"
_USUAL_FPS = 16.0
_CHANNELS = 3
_AXES = 5  # batch, frames, channels, rows, columns


class VideoProcessor(OutputProcessor):
    """Processor for models that return RGB videos [n, frames, 3, height, width].

    uint8 is returned unchanged. Floating point is mapped linearly from ``value_range`` to 0..255, rounded half to
    even, and clamped; NaN becomes 0. The conversion happens in ``reduce``, so that one byte is sent for each sample.

    Args:
        fps: frames per second of the result, 0.01 to 1000; None for ``fps`` of ``config.json``, or else 16.
        value_range: the values that mean black and white, for floating-point output.

    Raises:
        OptionError: ``fps`` is out of range, or ``value_range`` is not two finite numbers, the lower first.

    """

    name: ClassVar[str] = "video"
    modality: ClassVar[str] = "video"

    def __init__(self, *, fps: float | None = None, value_range: Sequence[float] = (0.0, 1.0)) -> None:
        try:
            self.fps = _USUAL_FPS if fps is None else checked_fps(fps)
        except InputError as error:
            raise OptionError(str(error)) from None
        self._range = checked_range(value_range)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> OutputProcessor:
        """Create an instance. ``fps`` defaults to the value in the model's ``config.json``."""
        return cls(**{"fps": config.get("fps"), **options})

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Convert the model's output to uint8 [n, frames, height, width, 3], the axis order of video encoders."""
        import torch

        tensor = only_tensor(output, _TAKES, ReduceError)
        if tensor.ndim != _AXES or tensor.shape[2] != _CHANNELS:
            raise ReduceError(f"{_TAKES}, got {describe(tensor)}")
        if tensor.dtype == torch.uint8:
            return tensor.movedim(2, 4).contiguous()
        if not tensor.is_floating_point():
            raise ReduceError(f"{_TAKES}, got {describe(tensor)}")
        count, frames, channels, height, width = tensor.shape
        quantised_frames = torch.empty(
            (count, frames, height, width, channels), dtype=torch.uint8, device=tensor.device
        )
        for frame in range(frames):  # one at a time: float32 copies of all frames would take four times the result
            quantised_frames[:, frame] = quantised(tensor[:, frame], self._range).movedim(1, 3)
        return quantised_frames

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> VideoOutput:
        """Build a `VideoOutput` from the uint8 [frames, height, width, 3] of one request."""
        tensor = only_tensor(raw, "a decoded video must be uint8 [frames, height, width, 3]", DecodeError)
        array = own_array(tensor)
        if array.dtype != "uint8" or array.ndim != _AXES - 1 or array.shape[3] != _CHANNELS:
            raise not_of_reduce("a decoded video must be uint8 [frames, height, width, 3]", tensor)
        return VideoOutput(array, self.fps)
