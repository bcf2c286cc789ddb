"""Results for each pixel: classes, depth, pictures, at the resolution of the input."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from vllm_mmout.errors import ReduceError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.base import OutputProcessor, Parts
from vllm_mmout.processors.option_values import Labels
from vllm_mmout.processors.raw import only_tensor, own_array
from vllm_mmout.processors.regression import RegressionProcessor
from vllm_mmout.processors.segmentation import SegmentationProcessor
from vllm_mmout.wings.transformers.heads import folder_of
from vllm_mmout.wings.transformers.inputs import SIZE
from vllm_mmout.wings.transformers.loading import image_processor_of, output_of

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Part, Raw


class SemanticSegmentationProcessor(SegmentationProcessor):
    """Classes of each pixel of the input, as ``post_process_semantic_segmentation`` makes them of coarser logits.

    Logits are scaled to the input bilinearly, on the device. Options and kinds of output are those of
    `SegmentationProcessor`; class names are by default those of ``id2label`` in config.json.
    """

    name: ClassVar[str] = "semantic-segmentation"

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Make the instance of a process, with the names of config.json where no option gives any."""
        if "class_names" not in options:
            by_id = Labels().or_those_of(config).by_id
            names = [by_id[number] for number in range(len(by_id)) if number in by_id]
            if len(names) == len(by_id) == len(set(names)) > 1:
                options = {**options, "class_names": names}
        return cls(**options)

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Scale logits to the input's size, then as `SegmentationProcessor.reduce`; a request after the other."""
        import torch

        tensors, (height, width) = _of_one_size(output)
        logits = only_tensor(tensors, "semantic segmentation takes logits", ReduceError)
        reduced = [
            super(SemanticSegmentationProcessor, self).reduce(_scaled(one, height, width), params)
            for one in torch.split(logits.float(), 1)
        ]
        return torch.cat(reduced)


class DepthEstimationProcessor(RegressionProcessor):
    """Depth of each pixel of the input, as the ``post_process_depth_estimation`` of the folder's processor makes it.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "depth-estimation"
    _folder = ""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Make the instance of a process."""
        made = cls(**options)
        made._folder = folder_of(config)
        return made

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Depth at the input's size, then as `RegressionProcessor.reduce`; a request after the other."""
        import torch

        tensors, size = _of_one_size(output)
        count = len(next(iter(tensors.values())))
        rows = ({name: tensor[row : row + 1].float() for name, tensor in tensors.items()} for row in range(count))
        return super().reduce(torch.stack([self._depth(row, size) for row in rows]), params)

    def _depth(self, tensors: Mapping[str, torch.Tensor], size: tuple[int, int]) -> torch.Tensor:
        """[height, width] of one request."""
        processor = image_processor_of(self._folder)
        post_process = getattr(processor, "post_process_depth_estimation", None)
        if post_process is None:
            return _scaled(tensors["predicted_depth"].unsqueeze(1), *size, mode="bicubic")[0, 0]
        sizes = {"target_sizes": [size]}
        if "source_sizes" in inspect.signature(post_process).parameters:
            sizes["source_sizes"] = [size]
        (found,) = post_process(output_of(tensors), **sizes)
        depth: torch.Tensor = found["predicted_depth"]
        return depth


class ImageToImageProcessor(OutputProcessor):
    """A picture of the input, some whole number of times as large: super-resolution, restoration.

    It lies where the input lies, so that it can be a GeoTIFF; of an input that the processor has padded it is cut off.
    uint8 [3, height, width], 0 to 255 for 0 to 1 of ``reconstruction``, rounded half to even.
    """

    name: ClassVar[str] = "image-to-image"
    modality: ClassVar[str] = "raster"

    def __init__(self) -> None:
        self._times = 1

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Make the instance of a process."""
        made = cls(**options)
        made._times = int(config.get("upscale") or 1)
        return made

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Bytes, or float32 where tiles are averaged first: [n, 3, height, width]."""
        import torch

        tensors, (height, width) = _of_one_size(output)
        picture = only_tensor(tensors, "image to image takes a reconstruction", ReduceError)
        picture = picture[..., : height * self._times, : width * self._times].float().clamp(0, 1) * 255
        return picture if params.blends else picture.round().to(torch.uint8)

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> RasterOutput:
        """Make a `RasterOutput` of [3, height, width]."""
        return _coloured(own_array(only_tensor(raw, "a picture must be one tensor", ReduceError)))

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join tiles: values are averaged before they are rounded."""
        if isinstance(parts, Parts) and params.of_part().blends:
            return parts.mosaic(params, lambda joined: _coloured(np.rint(joined.array).astype(np.uint8)))
        return super().assemble(parts, params)


def _coloured(array: NDArray[Any]) -> RasterOutput:
    return RasterOutput(array, band_names=("red", "green", "blue") if len(array) == len("rgb") else ())


def _of_one_size(output: Raw) -> tuple[dict[str, torch.Tensor], tuple[int, int]]:
    """The tensors of requests without their size in pixels, and this; requests of several sizes are reduced alone."""
    if not isinstance(output, dict) or SIZE not in output:
        raise ReduceError(f"the model's output lacks {SIZE}; name the output processor of a head of transformers only")
    tensors = {name: tensor for name, tensor in output.items() if name != SIZE}
    height, width = output[SIZE][0].tolist()
    if (output[SIZE] != output[SIZE][0]).any():
        raise ReduceError("inputs of several sizes cannot be reduced together")
    return tensors, (height, width)


def _scaled(planes: torch.Tensor, height: int, width: int, mode: str = "bilinear") -> torch.Tensor:
    """[n, planes, height, width] at another size."""
    import torch

    return torch.nn.functional.interpolate(planes, (height, width), mode=mode, align_corners=False)
