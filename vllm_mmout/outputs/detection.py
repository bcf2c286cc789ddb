"""DetectionOutput: objects found in an input, as boxes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs.drawing import MarkedBox, draw_boxes
from vllm_mmout.outputs.formats import formats_of
from vllm_mmout.outputs.formats.geojson import feature_collection
from vllm_mmout.outputs.rendering import class_colour
from vllm_mmout.outputs.structured import StructuredOutput

from pydantic import BaseModel  # isort: skip - the module above says what is missing without it

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.outputs.base import Source


class Detection(BaseModel):
    """One object that was found."""

    id: int
    """Of its class, as the model counts, from 0."""
    label: str
    score: float
    """From 0 to 1."""
    box: tuple[float, float, float, float]
    """xmin, ymin, xmax, ymax in ``units`` of the output. Edges, not centres of pixels, count: (0, 0) is the upper left
    corner of the upper left pixel, and the box of a whole picture is 0, 0, width, height."""


class DetectionOutput(StructuredOutput):
    """The objects that were found in an input, the most certain first."""

    output_kinds: ClassVar[tuple[str, ...]] = ("boxes", *StructuredOutput.output_kinds)
    formats: ClassVar[dict[str, str]] = {**StructuredOutput.formats, **formats_of("boxes")}

    detections: list[Detection]
    """Sorted by score; may be empty."""
    units: Literal["pixels", "relative"] = "pixels"
    """What boxes are measured in: pixels, or, where the input's size is not known, parts of its width and height."""
    size: tuple[int, int] | None = None
    """(height, width) of the input, in whose pixels the boxes are; None: in those of what the model saw."""

    def placed(self, source: Source) -> Self:
        """The same result with boxes in pixels of the input, cut off at its edges; boxes outside are left out.

        Boxes in pixels are taken for those of ``size``, without it of what the model saw.
        """
        placed = super().placed(source)
        if source.size is None:
            return placed
        height, width = source.size
        old = (1, 1) if self.units == "relative" else self.size or source.seen or source.size
        found = self.detections if old == source.size else _scaled(self.detections, width / old[1], height / old[0])
        return placed.model_copy(
            update={"detections": within(found, width, height), "units": "pixels", "size": source.size}
        )

    @property
    def geojson(self) -> dict[str, Any]:
        """A FeatureCollection of the boxes in the coordinate system of the input, also where that is rotated.

        SaveError: the input has no georeference of the kind that GeoJSON can name, or its size is not known.
        """
        source = self._source
        georeference = None if source is None else source.georeference
        if georeference is not None and self.units == "relative":
            raise SaveError(
                "GeoJSON needs the input's size, which is not known; lay the result on it with placed(Source(size=...))"
            )
        return feature_collection(
            ((one.box, {"label": one.label, "id": one.id, "score": one.score}) for one in self.detections),
            georeference,
        )

    def draw(self, picture: Image) -> Image:
        """Outline the boxes in the colours of their classes, with label and score."""
        height, width = (1, 1) if self.units == "relative" else self.size or (picture.height, picture.width)
        marked = _scaled(self.detections, picture.width / width, picture.height / height)
        return draw_boxes(
            picture, [MarkedBox(one.box, f"{one.label} {one.score:.2f}", class_colour(one.id)) for one in marked]
        )


def within(detections: Iterable[Detection], width: float, height: float) -> list[Detection]:
    """The detections that have an area within a picture, in their unit, their boxes cut off at its edges."""
    cut = []
    for one in detections:
        left, top, right, bottom = one.box
        box = (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))
        if box[0] < box[2] and box[1] < box[3]:
            cut.append(one.model_copy(update={"box": box}))
    return cut


def _scaled(detections: Iterable[Detection], cols: float, rows: float) -> list[Detection]:
    scale = (cols, rows, cols, rows)
    return [
        one.model_copy(update={"box": tuple(edge * by for edge, by in zip(one.box, scale, strict=True))})
        for one in detections
    ]
