"""Output processor for masks of objects. A request marks the objects by points or boxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import OptionError, ReduceError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.raw import not_of_reduce, own_array
from vllm_mmout.wings.transformers.inputs import SIZE
from vllm_mmout.wings.transformers.processors.of_folder import OfFolder

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw

_PRESENT = 255


class MaskGenerationProcessor(OfFolder):
    """Output processor for masks of objects, one band per object. A request marks the objects by points or boxes.

    The result is uint8 [objects, height, width] at the input's size, 255 inside an object. With ``masks="all"`` it has
    all masks that the model proposes, with an object's bands one after the other. Bands are named "0: 0.93", by object
    and score (predicted intersection over union).

    Args:
        masks: "best" for the mask with the highest score, or "all".

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "mask-generation"
    modality: ClassVar[str] = "raster"

    def __init__(self, *, masks: str = "best") -> None:
        if masks not in ("best", "all"):
            raise OptionError(f'masks must be "best" or "all", got {masks!r}')
        self._masks = masks

    def reduce(self, output: Raw, params: OutputParams) -> dict[str, torch.Tensor]:
        """Scale the model's masks to the input's size. Return the masks and the score of each mask.

        "masks" are uint8 [n, objects, masks, height, width], 255 inside an object. "scores" are [n, objects, masks].
        """
        import torch

        if not isinstance(output, dict) or SIZE not in output:
            raise ReduceError(f"the model's output lacks {SIZE}; name this processor for heads of transformers only")
        rows = [{name: tensor[row] for name, tensor in output.items()} for row in range(len(output[SIZE]))]
        masks, scores = zip(*map(self._masks_of, rows), strict=True)
        if len({mask.shape for mask in masks}) > 1:
            raise ReduceError("inputs of several sizes cannot be reduced together")
        return {"masks": torch.stack(masks), "scores": torch.stack(scores)}

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> RasterOutput:
        """Build a `RasterOutput` from the masks of one request."""
        if not isinstance(raw, dict) or set(raw) != {"masks", "scores"}:
            raise not_of_reduce("masks take masks and scores from reduce")
        names = [f"{number}: {score:.2f}" for number, row in enumerate(raw["scores"].tolist()) for score in row]
        return RasterOutput(own_array(raw["masks"].flatten(0, 1)), band_names=names)

    def _masks_of(self, row: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the masks [objects, masks, height, width] and scores [objects, masks] of one request."""
        import torch

        masks, scores = row["pred_masks"].float(), row["iou_scores"].float()
        if self._masks == "best":
            best = scores.argmax(dim=-1, keepdim=True)
            scores = scores.gather(-1, best)
            masks = masks.gather(2, best[..., None, None].expand(-1, -1, -1, *masks.shape[-2:]))
        sizes = {"original_sizes": row[SIZE][None]}
        if "reshaped_input_sizes" in row:
            sizes["reshaped_input_sizes"] = row["reshaped_input_sizes"]
        (scaled,) = self.image_processor.post_process_masks(masks, **sizes)
        return scaled.to(torch.uint8) * _PRESENT, scores[0]
