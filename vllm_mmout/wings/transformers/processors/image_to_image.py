"""Output processor for models that return a picture, such as super-resolution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from vllm_mmout.errors import ReduceError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.parts import Parts
from vllm_mmout.processors.raw import only_tensor, own_array
from vllm_mmout.wings.transformers.processors.pixel_tensors import of_one_size

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.processors.part import Part


class ImageToImageProcessor(OutputProcessor):
    """Output processor for models that return a picture, such as super-resolution and restoration.

    The result has the input's georeference, so that it can be saved as a GeoTIFF; padding by the processor is cropped.
    It is uint8 [3, height, width], 0 to 255 for 0 to 1 of ``reconstruction``, rounded half to even.
    """

    name: ClassVar[str] = "image-to-image"
    modality: ClassVar[str] = "raster"

    def __init__(self) -> None:
        self._times = 1

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create the processor. ``upscale`` in ``config.json`` is the picture's scale factor, 1 by default."""
        processor = cls(**options)
        processor._times = int(config.get("upscale") or 1)
        return processor

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Convert pictures to uint8 [n, 3, height, width], or to float32 if overlapping tiles are averaged later."""
        import torch

        tensors, (height, width) = of_one_size(output)
        picture = only_tensor(tensors, "image to image takes a reconstruction", ReduceError)
        picture = picture[..., : height * self._times, : width * self._times].float().clamp(0, 1) * 255
        return picture if params.blends else picture.round().to(torch.uint8)

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> RasterOutput:
        """Build a `RasterOutput` from the picture [3, height, width] of one request."""
        return _coloured(own_array(only_tensor(raw, "a picture must be one tensor", ReduceError)))

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join the tiles of a scene. Overlapping values are averaged, and the averages are rounded to integers."""
        if isinstance(parts, Parts) and params.of_part().blends:
            return parts.mosaic(params, lambda joined: _coloured(np.rint(joined.array).astype(np.uint8)))
        return super().assemble(parts, params)


def _coloured(array: NDArray[Any]) -> RasterOutput:
    return RasterOutput(array, band_names=("red", "green", "blue") if len(array) == len("rgb") else ())
