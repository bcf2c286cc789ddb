"""Output processors for depth, surface normals and alpha mattes, with a value for each pixel of the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vllm_mmout.processors.regression import RegressionProcessor
from vllm_mmout.wings.transformers.loading import HeadOutput, called
from vllm_mmout.wings.transformers.processors.of_folder import OfFolder
from vllm_mmout.wings.transformers.processors.pixel_tensors import of_one_size, scaled

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw


class DepthEstimationProcessor(OfFolder, RegressionProcessor):
    """Output processor for the depth of each pixel, computed by transformers' ``post_process_depth_estimation``.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "depth-estimation"
    output: ClassVar[str] = "predicted_depth"
    """Name of the model output that holds the pixel values."""
    result: ClassVar[str] = "predicted_depth"
    """Key of the pixel values in the dict that the image processor's ``post_process_*`` method returns."""

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Resize the depth map to the input's size, and apply processor options such as ``scale`` and ``clip``."""
        import torch

        tensors, size = of_one_size(output)
        count = len(next(iter(tensors.values())))
        rows = ({name: tensor[row : row + 1].float() for name, tensor in tensors.items()} for row in range(count))
        return super().reduce(torch.stack([self._planes(row, size) for row in rows]), params)

    def _planes(self, tensors: Mapping[str, torch.Tensor], size: tuple[int, int]) -> torch.Tensor:
        """Return the pixel values of one request: [height, width] or [bands, height, width]."""
        processor = self.image_processor
        post_process = getattr(processor, f"post_process_{self.name.replace('-', '_')}", None)
        if post_process is None:
            return self._without_processor(tensors[self.output], size)
        (result,) = called(post_process, HeadOutput(tensors), target_sizes=[size], source_sizes=[size])
        planes: torch.Tensor = result[self.result]
        return planes

    def _without_processor(self, planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return scaled(planes.unsqueeze(1), *size, mode="bicubic")[0, 0]


class NormalEstimationProcessor(DepthEstimationProcessor):
    """Output processor for the surface normal of each pixel: x, y and z, each from -1 to 1.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "normal-estimation"
    output: ClassVar[str] = "normals"
    result: ClassVar[str] = "normals"

    def _without_processor(self, planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return scaled(planes, *size)[0]


class ImageMattingProcessor(DepthEstimationProcessor):
    """Output processor for image matting: the fraction of foreground in each pixel, from 0 to 1.

    Options are those of `RegressionProcessor`.
    """

    name: ClassVar[str] = "image-matting"
    output: ClassVar[str] = "alphas"
    result: ClassVar[str] = "alpha"

    def _without_processor(self, planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return planes[0, 0, : size[0], : size[1]]  # crop the processor's padding at the lower and right edge
