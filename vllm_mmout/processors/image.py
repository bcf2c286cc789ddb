"""`ImageProcessor`, which turns the output of a model into grey, RGB or RGBA pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import DecodeError, ReduceError
from vllm_mmout.outputs import ImageOutput
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.quantising import checked_range, quantised
from vllm_mmout.processors.raw import describe, not_of_reduce, only_tensor, own_array

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw

_TAKES = "image output must be uint8 or floating point [n, channels, height, width] with 1, 3 or 4 channels"
_CHANNELS = (1, 3, 4)
_AXES = 4  # batch, channels, rows, columns


class ImageProcessor(OutputProcessor):
    """Processor for models that return pictures [n, channels, height, width]: grey (1 channel), RGB (3) or RGBA (4).

    uint8 is returned unchanged. Floating point is mapped linearly from ``value_range`` to 0..255, rounded half to
    even, and clamped; NaN becomes 0. The conversion happens in ``reduce``, so that one byte is sent for each sample.

    Args:
        value_range: the values that mean black and white, for floating-point output.

    Raises:
        OptionError: ``value_range`` is not two finite numbers, the lower first.

    """

    name: ClassVar[str] = "image"
    modality: ClassVar[str] = "image"

    def __init__(self, *, value_range: Sequence[float] = (0.0, 1.0)) -> None:
        self._range = checked_range(value_range)

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Convert the model's output to uint8 [n, height, width, channels], the axis order of picture formats."""
        tensor = only_tensor(output, _TAKES, ReduceError)
        if tensor.ndim != _AXES or tensor.shape[1] not in _CHANNELS:
            raise ReduceError(f"{_TAKES}, got {describe(tensor)}")
        if tensor.is_floating_point():
            tensor = quantised(tensor, self._range)
        elif str(tensor.dtype) != "torch.uint8":
            raise ReduceError(f"{_TAKES}, got {describe(tensor)}")
        return tensor.permute(0, 2, 3, 1).contiguous()

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> ImageOutput:
        """Build an `ImageOutput` from the uint8 [height, width, channels] of one request."""
        tensor = only_tensor(raw, "a decoded image must be uint8 [height, width, channels]", DecodeError)
        array = own_array(tensor)
        if array.dtype != "uint8" or array.ndim != _AXES - 1 or array.shape[2] not in _CHANNELS:
            raise not_of_reduce(
                f"a decoded image must be uint8 [height, width, 1, 3 or 4 channels], got {describe(tensor)}"
            )
        return ImageOutput(array[:, :, 0] if array.shape[2] == 1 else array)
