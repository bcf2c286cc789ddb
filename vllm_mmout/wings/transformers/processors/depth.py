"""Output processors for heads with a result for each pixel (classes, depth, pictures), at the input's resolution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from vllm_mmout.errors import ReduceError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.base import OutputProcessor, Parts
from vllm_mmout.processors.option_values import Labels
from vllm_mmout.processors.raw import not_of_reduce, only_tensor, own_array
from vllm_mmout.processors.regression import RegressionProcessor
from vllm_mmout.processors.segmentation import SegmentationProcessor, best_of
from vllm_mmout.wings.transformers.inputs import SIZE
from vllm_mmout.wings.transformers.loading import Output, called
from vllm_mmout.wings.transformers.processors.of_folder import OfFolder
from vllm_mmout.wings.transformers.prompts import TEXTS, as_texts

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.processors.part import Part


class SemanticSegmentationProcessor(SegmentationProcessor):
    """Processor for the class of each pixel, computed as ``post_process_semantic_segmentation`` does.

    Logits are scaled bilinearly to the input's size, on the device. Options and kinds of output are those of
    `SegmentationProcessor`; class names are by default those of ``id2label`` in config.json.
    """

    name: ClassVar[str] = "semantic-segmentation"

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create the instance of a process, with the class names of config.json where no option sets them."""
        processor = cls(**options)
        by_id = Labels().or_those_of(config).by_id
        if processor._class_names is None and len(by_id) > 1 and set(by_id) == set(range(len(by_id))):
            processor._class_names = tuple(by_id[number] for number in range(len(by_id)))  # may repeat a name
        return processor

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Scale logits to the input's size and reduce them like `SegmentationProcessor`, one request at a time."""
        import torch

        tensors, (height, width) = of_one_size(output)
        logits = only_tensor(tensors, "semantic segmentation takes logits", ReduceError)
        return torch.cat([self._of_one(row, height, width, params) for row in torch.split(logits.float(), 1)])

    def _of_one(self, logits: torch.Tensor, height: int, width: int, params: OutputParams) -> torch.Tensor:
        """Reduce one request, class by class, since logits of all classes at the input's size may take gigabytes."""
        if self.travels(params) != "classes":
            return super().reduce(_scaled(logits, height, width), params)
        classes = self.checked_logits(logits).shape[1]
        return best_of((_scaled(logits[:, number, None], height, width)[:, 0] for number in range(classes)), classes)


class DepthEstimationProcessor(OfFolder, RegressionProcessor):
    """Processor for depth of each pixel, computed by ``post_process_depth_estimation`` of the folder's processor.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "depth-estimation"
    output: ClassVar[str] = "predicted_depth"
    """Name of the model's output that holds the values."""
    result: ClassVar[str] = "predicted_depth"
    """Key of the values in the result of ``post_process_*``."""

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Scale depth to the input's size and reduce it like `RegressionProcessor`, one request at a time."""
        import torch

        tensors, size = of_one_size(output)
        count = len(next(iter(tensors.values())))
        rows = ({name: tensor[row : row + 1].float() for name, tensor in tensors.items()} for row in range(count))
        return super().reduce(torch.stack([self._planes(row, size) for row in rows]), params)

    def _planes(self, tensors: Mapping[str, torch.Tensor], size: tuple[int, int]) -> torch.Tensor:
        """Return the values of one request, [height, width] or [bands, height, width]."""
        processor = self.image_processor
        post_process = getattr(processor, f"post_process_{self.name.replace('-', '_')}", None)
        if post_process is None:
            return self._without_processor(tensors[self.output], size)
        (result,) = called(post_process, Output(tensors), target_sizes=[size], source_sizes=[size])
        planes: torch.Tensor = result[self.result]
        return planes

    def _without_processor(self, planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return _scaled(planes.unsqueeze(1), *size, mode="bicubic")[0, 0]


class NormalEstimationProcessor(DepthEstimationProcessor):
    """Processor for the surface normal of each pixel, x, y and z from -1 to 1.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "normal-estimation"
    output: ClassVar[str] = "normals"
    result: ClassVar[str] = "normals"

    def _without_processor(self, planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return _scaled(planes, *size)[0]


class ImageMattingProcessor(DepthEstimationProcessor):
    """Processor for the fraction of foreground in each pixel, from 0 to 1.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "image-matting"
    output: ClassVar[str] = "alphas"
    result: ClassVar[str] = "alpha"

    def _without_processor(self, planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return planes[0, 0, : size[0], : size[1]]  # crop the processor's padding at the lower and right edge


class ImageToImageProcessor(OutputProcessor):
    """Processor for models that return a picture at a multiple of the input's size: super-resolution, restoration.

    The result has the input's georeference, so that it can be saved as a GeoTIFF; padding by the processor is cropped.
    It is uint8 [3, height, width], 0 to 255 for 0 to 1 of ``reconstruction``, rounded half to even.
    """

    name: ClassVar[str] = "image-to-image"
    modality: ClassVar[str] = "raster"

    def __init__(self) -> None:
        self._times = 1

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create the instance of a process."""
        processor = cls(**options)
        processor._times = int(config.get("upscale") or 1)
        return processor

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Convert to bytes, or to float32 if tiles will be averaged: [n, 3, height, width]."""
        import torch

        tensors, (height, width) = of_one_size(output)
        picture = only_tensor(tensors, "image to image takes a reconstruction", ReduceError)
        picture = picture[..., : height * self._times, : width * self._times].float().clamp(0, 1) * 255
        return picture if params.blends else picture.round().to(torch.uint8)

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> RasterOutput:
        """Build a `RasterOutput` from one request's [3, height, width]."""
        return _coloured(own_array(only_tensor(raw, "a picture must be one tensor", ReduceError)))

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join the tiles of a scene, and average values before they are rounded."""
        if isinstance(parts, Parts) and params.of_part().blends:
            return parts.mosaic(params, lambda joined: _coloured(np.rint(joined.array).astype(np.uint8)))
        return super().assemble(parts, params)


class TextSegmentationProcessor(RegressionProcessor):
    """Processor for the probability that a pixel fits a text of the request, from 0 to 1, one band for each text.

    It is the sigmoid of the model's logits, scaled bilinearly to the input's size. Options are those of
    `RegressionProcessor`; bands are named by the texts.
    """

    name: ClassVar[str] = "text-segmentation"

    def reduce(self, output: Raw, params: OutputParams) -> Any:
        """Scale logits to the input's size and reduce them like `RegressionProcessor`; keep the texts."""
        import torch

        tensors, (height, width) = of_one_size(output)
        texts = tensors.pop(TEXTS)
        logits = only_tensor(tensors, "segmentation by text takes logits", ReduceError)
        logits = logits.reshape(len(logits), -1, *logits.shape[-2:]).float()
        planes = torch.cat([_scaled(row, height, width).sigmoid() for row in torch.split(logits, 1)])
        return {"values": super().reduce(planes, params), TEXTS: texts}

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> RasterOutput:
        """Build a `RasterOutput` from one request's [texts, height, width]."""
        if not isinstance(raw, dict) or TEXTS not in raw:
            raise not_of_reduce(f"segmentation by text takes values and {TEXTS} from reduce")
        raster = super().decode(raw["values"], params)
        raster.band_names = tuple(as_texts(raw[TEXTS]))
        return raster


def _coloured(array: NDArray[Any]) -> RasterOutput:
    return RasterOutput(array, band_names=("red", "green", "blue") if len(array) == len("rgb") else ())


def of_one_size(output: Raw) -> tuple[dict[str, torch.Tensor], tuple[int, int]]:
    """Return the tensors of requests and the input's (height, width); raise ReduceError if inputs differ in size."""
    if not isinstance(output, dict) or SIZE not in output:
        raise ReduceError(f"the model's output lacks {SIZE}; name the output processor of a head of transformers only")
    tensors = {name: tensor for name, tensor in output.items() if name != SIZE}
    height, width = output[SIZE][0].tolist()
    if (output[SIZE] != output[SIZE][0]).any():
        raise ReduceError("inputs of several sizes cannot be reduced together")
    return tensors, (height, width)


def _scaled(planes: torch.Tensor, height: int, width: int, mode: str = "bilinear") -> torch.Tensor:
    """Scale [n, planes, height, width] to another height and width."""
    import torch

    return torch.nn.functional.interpolate(planes, (height, width), mode=mode, align_corners=False)
