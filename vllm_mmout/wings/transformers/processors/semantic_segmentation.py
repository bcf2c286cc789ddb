"""Output processors for semantic segmentation: the class of each pixel, or the pixels that match a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vllm_mmout.errors import ReduceError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.option_values import Labels
from vllm_mmout.processors.raw import not_of_reduce, only_tensor
from vllm_mmout.processors.regression import RegressionProcessor
from vllm_mmout.processors.segmentation import SegmentationProcessor, best_of
from vllm_mmout.wings.transformers.processors.pixel_tensors import of_one_size, scaled
from vllm_mmout.wings.transformers.prompts import TEXTS, as_texts

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw


class SemanticSegmentationProcessor(SegmentationProcessor):
    """Output processor that chooses the class of each pixel in the same way as transformers.

    The function of transformers is ``post_process_semantic_segmentation``.

    Logits are scaled bilinearly to the input's size, on the device. Options and kinds of output are those of
    `SegmentationProcessor`; class names are by default those of ``id2label`` in config.json.
    """

    name: ClassVar[str] = "semantic-segmentation"

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create the processor. Class names come from ``config.json`` unless an option sets them."""
        processor = cls(**options)
        by_id = Labels().or_those_of(config).by_id
        if processor._class_names is None and len(by_id) > 1 and set(by_id) == set(range(len(by_id))):
            processor._class_names = tuple(by_id[number] for number in range(len(by_id)))  # may repeat a name
        return processor

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Scale the logits to the input's size, and convert the logits to class ids, probabilities or confidences."""
        import torch

        tensors, (height, width) = of_one_size(output)
        logits = only_tensor(tensors, "semantic segmentation takes logits", ReduceError)
        return torch.cat([self._reduce_one(row, height, width, params) for row in torch.split(logits.float(), 1)])

    def _reduce_one(self, logits: torch.Tensor, height: int, width: int, params: OutputParams) -> torch.Tensor:
        """Resize the logits of one request, and convert the logits to class ids, probabilities or confidences.

        For class ids, the logits of one class at a time are resized to the input's size, which saves memory.
        """
        if self.travels(params) != "classes":
            return super().reduce(scaled(logits, height, width), params)
        classes = self.checked_logits(logits).shape[1]
        return best_of((scaled(logits[:, number, None], height, width)[:, 0] for number in range(classes)), classes)


class TextSegmentationProcessor(RegressionProcessor):
    """Output processor for the probability, 0 to 1, that a pixel matches a text of the request, one band per text.

    It is the sigmoid of the model's logits, scaled bilinearly to the input's size. Options are those of
    `RegressionProcessor`; bands are named by the texts.
    """

    name: ClassVar[str] = "text-segmentation"

    def reduce(self, output: Raw, params: OutputParams) -> Any:
        """Convert logits to probabilities. Return a dict with the probabilities and the request's texts.

        The logits are scaled to the input's size first. The texts become the names of the result's bands.
        """
        import torch

        tensors, (height, width) = of_one_size(output)
        texts = tensors.pop(TEXTS)
        logits = only_tensor(tensors, "segmentation by text takes logits", ReduceError)
        logits = logits.reshape(len(logits), -1, *logits.shape[-2:]).float()
        planes = torch.cat([scaled(row, height, width).sigmoid() for row in torch.split(logits, 1)])
        return {"values": super().reduce(planes, params), TEXTS: texts}

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> RasterOutput:
        """Build a raster with a band for each text of the prompt, from an array [texts, height, width]."""
        if not isinstance(raw, dict) or TEXTS not in raw:
            raise not_of_reduce(f"segmentation by text takes values and {TEXTS} from reduce")
        raster = super().decode(raw["values"], params)
        raster.band_names = tuple(as_texts(raw[TEXTS]))
        return raster
