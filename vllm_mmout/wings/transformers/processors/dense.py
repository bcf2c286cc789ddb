"""Results for each pixel: classes, depth, pictures, at the resolution of the input."""

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
        made = cls(**options)
        by_id = Labels().or_those_of(config).by_id
        if made._class_names is None and len(by_id) > 1 and set(by_id) == set(range(len(by_id))):
            made._class_names = tuple(by_id[number] for number in range(len(by_id)))  # which may name two classes alike
        return made

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Scale logits to the input's size, then as `SegmentationProcessor.reduce`; a request after the other."""
        import torch

        tensors, (height, width) = of_one_size(output)
        logits = only_tensor(tensors, "semantic segmentation takes logits", ReduceError)
        return torch.cat([self._of_one(one, height, width, params) for one in torch.split(logits.float(), 1)])

    def _of_one(self, logits: torch.Tensor, height: int, width: int, params: OutputParams) -> torch.Tensor:
        """Of one request; the logits of all classes at the input's size may be gigabytes, those of one are not."""
        if self.travels(params) != "classes":
            return super().reduce(_scaled(logits, height, width), params)
        classes = self.checked_logits(logits).shape[1]
        return best_of((_scaled(logits[:, one, None], height, width)[:, 0] for one in range(classes)), classes)


class DepthEstimationProcessor(OfFolder, RegressionProcessor):
    """Depth of each pixel of the input, as the ``post_process_depth_estimation`` of the folder's processor makes it.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "depth-estimation"
    output: ClassVar[str] = "predicted_depth"
    """What of the model's output the values are."""
    result: ClassVar[str] = "predicted_depth"
    """What of the processor's result they are."""

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Depth at the input's size, then as `RegressionProcessor.reduce`; a request after the other."""
        import torch

        tensors, size = of_one_size(output)
        count = len(next(iter(tensors.values())))
        rows = ({name: tensor[row : row + 1].float() for name, tensor in tensors.items()} for row in range(count))
        return super().reduce(torch.stack([self._planes(row, size) for row in rows]), params)

    def _planes(self, tensors: Mapping[str, torch.Tensor], size: tuple[int, int]) -> torch.Tensor:
        """[height, width] or [bands, height, width] of one request."""
        processor = self.image_processor
        post_process = getattr(processor, f"post_process_{self.name.replace('-', '_')}", None)
        if post_process is None:
            return self._without_processor(tensors[self.output], size)
        (found,) = called(post_process, Output(tensors), target_sizes=[size], source_sizes=[size])
        planes: torch.Tensor = found[self.result]
        return planes

    def _without_processor(self, planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return _scaled(planes.unsqueeze(1), *size, mode="bicubic")[0, 0]


class NormalEstimationProcessor(DepthEstimationProcessor):
    """Surface normals of each pixel, x, y and z from -1 to 1.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "normal-estimation"
    output: ClassVar[str] = "normals"
    result: ClassVar[str] = "normals"

    def _without_processor(self, planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return _scaled(planes, *size)[0]


class ImageMattingProcessor(DepthEstimationProcessor):
    """How much of each pixel is foreground, from 0 to 1.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "image-matting"
    output: ClassVar[str] = "alphas"
    result: ClassVar[str] = "alpha"

    def _without_processor(self, planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return planes[0, 0, : size[0], : size[1]]  # the processor pads at the lower and right end


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

        tensors, (height, width) = of_one_size(output)
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


class TextSegmentationProcessor(RegressionProcessor):
    """How likely each pixel is what a text of the request says: a band a text, from 0 to 1.

    The sigmoid of the model's logits, scaled to the input bilinearly. Options are those of `RegressionProcessor`; the
    bands are named by the texts.
    """

    name: ClassVar[str] = "text-segmentation"

    def reduce(self, output: Raw, params: OutputParams) -> Any:
        """Scale to the input's size, then as `RegressionProcessor.reduce`; the texts go with it."""
        import torch

        tensors, (height, width) = of_one_size(output)
        texts = tensors.pop(TEXTS)
        logits = only_tensor(tensors, "segmentation by text takes logits", ReduceError)
        logits = logits.reshape(len(logits), -1, *logits.shape[-2:]).float()
        planes = torch.cat([_scaled(one, height, width).sigmoid() for one in torch.split(logits, 1)])
        return {"values": super().reduce(planes, params), TEXTS: texts}

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> RasterOutput:
        """Make a `RasterOutput` of [texts, height, width]."""
        if not isinstance(raw, dict) or TEXTS not in raw:
            raise not_of_reduce(f"segmentation by text takes values and {TEXTS} from reduce")
        made = super().decode(raw["values"], params)
        made.band_names = tuple(as_texts(raw[TEXTS]))
        return made


def _coloured(array: NDArray[Any]) -> RasterOutput:
    return RasterOutput(array, band_names=("red", "green", "blue") if len(array) == len("rgb") else ())


def of_one_size(output: Raw) -> tuple[dict[str, torch.Tensor], tuple[int, int]]:
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
