"""Output processor for instance and panoptic segmentation. Its result is a raster of segment numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.option_values import PaletteOption, checked_part
from vllm_mmout.processors.parts import Parts
from vllm_mmout.processors.raw import asked_output, not_of_reduce, own_array
from vllm_mmout.processors.segmentation import as_vectors, class_dtype
from vllm_mmout.wings.transformers.loading import HeadOutput, called
from vllm_mmout.wings.transformers.processors.join_segments import Segment, joined_segments
from vllm_mmout.wings.transformers.processors.of_folder import OfFolder
from vllm_mmout.wings.transformers.processors.pixel_tensors import of_one_size
from vllm_mmout.wings.transformers.processors.semantic_segmentation import SemanticSegmentationProcessor

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.processors.part import Part

_TASKS = ("panoptic", "instance")
_MAX_SEGMENTS = 2**16 - 1


class ImageSegmentationProcessor(OfFolder, SemanticSegmentationProcessor):
    """Output processor for instance or panoptic segmentation with the functions ``post_process_*`` of transformers.

    The result is a raster of uint16 with the number, from 1, of the segment that contains each pixel; 0, its nodata,
    means no segment. Class names are the segments' labels, by number. The item "segments" of the metadata lists each
    segment's ``id``, ``label_id``, ``label`` and ``score``, as JSON. "polygons" and "areas" are computed from that
    raster, "classes" by ``post_process_semantic_segmentation``.

    Args:
        task: "panoptic" or "instance"; by default the first of them that the folder's processor supports.
        threshold: segments with a lower score are left out; None for the processor's default, 0.5 to 0.8.
        class_names: names for the output "classes", by default those of ``id2label`` in config.json.
        palette: colours for the output "classes".

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "image-segmentation"
    outputs: ClassVar[tuple[str, ...]] = ("segments", "classes", "polygons", "areas")
    products: ClassVar[tuple[str, ...]] = ("segments", "polygons", "areas")

    def __init__(
        self,
        *,
        task: str | None = None,
        threshold: float | None = None,
        class_names: Sequence[str] | None = None,
        palette: PaletteOption | None = None,
    ) -> None:
        super().__init__(class_names=class_names, palette=palette)
        if task not in (None, *_TASKS):
            raise OptionError(f"task must be one of {', '.join(_TASKS)}, or left out, got {task!r}")
        self._task = task
        self._options = {} if threshold is None else {"threshold": checked_part("threshold", threshold)}

    def travels(self, params: OutputParams) -> str:
        """Return the kind of result that the worker sends: "classes" or "segments"."""
        return "classes" if asked_output(self, self.name, params) == "classes" else "segments"

    def reduce(self, output: Raw, params: OutputParams) -> Any:
        """Convert the model's outputs to the class or the segment number of each pixel.

        Classes are uint8 or uint16 [n, height, width]. Segments are a dict: "ids" are the segment numbers, int32 [n,
        height, width], and "segments" are float32 [n, queries, 2]: class and score of the segments from 1, with -1
        after the last segment.
        """
        import torch

        tensors, size = of_one_size(output)
        count = len(next(iter(tensors.values())))
        rows = ({name: tensor[row : row + 1].float() for name, tensor in tensors.items()} for row in range(count))
        if self.travels(params) == "classes":
            post_process = self._post_process("semantic")
            dtype = getattr(torch, class_dtype(_classes_of(tensors)))
            classes = [called(post_process, HeadOutput(row), target_sizes=[size])[0] for row in rows]
            return torch.stack(classes).to(dtype)
        ids, segments = zip(*(self._segments(row, size) for row in rows), strict=True)
        return {"ids": torch.stack(ids), "segments": torch.stack(segments)}

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> Any:
        """Build the result of one request: a `RasterOutput`, polygons or areas."""
        if self.travels(params) == "classes":
            return super().decode(raw, params)
        if not isinstance(raw, dict) or set(raw) != {"ids", "segments"}:
            raise not_of_reduce("segments take ids and segments from reduce")
        segments = [
            Segment(int(label), self._labels.of(int(label)), score)
            for label, score in raw["segments"].tolist()
            if label >= 0
        ]
        raster = _raster(own_array(raw["ids"]), segments)
        return raster if params.part else as_vectors(raster, asked_output(self, self.name, params), params)

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join tiles. Segments of one label that touch at the line between two tiles become one segment."""
        if not isinstance(parts, Parts) or self.travels(params) == "classes":
            return super().assemble(parts, params)
        return as_vectors(_raster(*joined_segments(parts)), asked_output(self, self.name, params), params)

    def mosaic_scene(self, params: OutputParams) -> OutputParams:
        """Return the options for each scene of a mosaic. Raise OptionError if the output needs segment numbers.

        Each scene numbers its segments from 1, so a mosaic cannot join the segments of two scenes. The order
        "confident" is refused too, because segments lack probabilities.
        """
        if params.mosaic == "confident":
            raise OptionError(
                'mosaic="confident" needs probabilities, which segments lack; choose another order', param="mosaic"
            )
        if self.travels(params) != "classes":
            raise OptionError(
                'a mosaic cannot join segments, which each scene numbers anew; ask for output="classes"', param="output"
            )
        return params

    def _post_process(self, task: str) -> Any:
        processor = self.image_processor
        method = getattr(processor, f"post_process_{task}_segmentation", None)
        if method is None:
            raise ReduceError(f"{type(processor).__name__} of this model makes no {task} segmentation; ask for another")
        return method

    def _segments(self, row: Mapping[str, torch.Tensor], size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the segment number of each pixel, and the class and score of each segment.

        The numbers are int32 [height, width]. Classes and scores are float32 [queries, 2], with -1 after the last
        segment. ``row`` has the model's output tensors for one input, with a batch axis of length 1.
        """
        import torch

        processor = self.image_processor
        tasks = [task for task in _TASKS if hasattr(processor, f"post_process_{task}_segmentation")]
        post_process = self._post_process(self._task or next(iter(tasks), _TASKS[0]))
        (result,) = called(post_process, HeadOutput(row), target_sizes=[size], **self._options)
        queries = next(tensor.shape[1] for name, tensor in row.items() if "logits" in name)
        ids = torch.zeros(size, dtype=torch.int32)
        table = torch.full((queries, 2), -1.0)
        for number, segment in enumerate(result["segments_info"], start=1):
            ids[(result["segmentation"] == segment["id"]).cpu()] = number
            table[number - 1] = torch.tensor([float(segment["label_id"]), float(segment["score"])])
        return ids, table


def _classes_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the number of classes, not counting the class "no object".

    The logits are [n, queries, classes + 1]. Their last class is "no object".
    """
    return max(len(tensor[0, 0]) for name, tensor in tensors.items() if "logits" in name and tensor.ndim == 3) - 1


def _raster(ids: NDArray[Any], segments: Sequence[Segment]) -> RasterOutput:
    """Return a raster of segment numbers, which begin at 1. Its metadata lists the segments' labels and scores."""
    if len(segments) > _MAX_SEGMENTS:
        raise DecodeError(
            f"{len(segments)} segments are more than a raster of uint16 can number; ask for a smaller window"
        )
    entries = [
        {"id": number, "label_id": segment.label_id, "label": segment.label, "score": round(segment.score, 6)}
        for number, segment in enumerate(segments, start=1)
    ]
    return RasterOutput(
        ids.astype(np.uint16)[np.newaxis],
        nodata=0,
        band_names=("segments",),
        class_names=("", *(segment.label for segment in segments)),
        metadata={"segments": json.dumps(entries)},
    )
