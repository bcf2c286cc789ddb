"""DetectionOutput, the output of models that detect objects and their bounding boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs.drawing import MarkedBox, draw_boxes
from vllm_mmout.outputs.formats import formats_of
from vllm_mmout.outputs.formats.geojson import feature_collection
from vllm_mmout.outputs.rendering import class_colour
from vllm_mmout.outputs.structured import StructuredOutput

from pydantic import BaseModel, Field  # isort: skip - structured.py, imported above, raises a helpful error without pydantic

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.geo import PlacedArea
    from vllm_mmout.outputs.base import Source

Box: TypeAlias = tuple[float, float, float, float]
"""Bounding box as (xmin, ymin, xmax, ymax)."""


class Detection(BaseModel):
    """A detected object."""

    id: int
    """Index of the object's class in the model, from 0."""
    label: str
    """Name of the object's class."""
    score: float
    """Score of the detection, from 0 to 1."""
    box: tuple[float, float, float, float]
    """Bounding box (xmin, ymin, xmax, ymax) in the output's ``units``. Coordinates refer to pixel edges, not centres:
    (0, 0) is the upper left corner of the picture, and (width, height) the lower right corner."""


class DetectionOutput(StructuredOutput):
    """Objects that a model detected in an input, with bounding boxes and scores, sorted by descending score."""

    takes_area: ClassVar[bool] = True
    output_kinds: ClassVar[tuple[str, ...]] = ("boxes", *StructuredOutput.output_kinds)
    formats: ClassVar[dict[str, str]] = {**StructuredOutput.formats, **formats_of("boxes")}

    detections: list[Detection]
    """Detections sorted by descending score. May be empty."""
    units: Literal["pixels", "relative"] = "pixels"
    """Unit of the boxes: "pixels", or "relative" if the input's size is unknown. Relative boxes are fractions of the
    input's width and height."""
    size: tuple[int, int] | None = None
    """(height, width) of the picture that boxes in pixels refer to. None means the input as resized for the model."""
    omitted: Annotated[int, Field(ge=0, exclude_if=lambda count: count == 0)] = 0
    """Number of objects that exceeded the score threshold but were left out by the limit on detections. JSON has this
    field only if it is not 0."""

    keeps_flat: Annotated[bool, Field(exclude=True, repr=False)] = False
    """True if clipping to the input keeps boxes of zero width or height. This field is not written to JSON."""

    def placed(self, source: Source) -> Self:
        """Return a copy of this output with the boxes in pixels of the input ``source``, clipped to the input's edges.

        Boxes outside the input, and boxes whose centre is outside the request's area of interest, are left out. Boxes
        that are in pixels already are scaled from ``size`` or, if that is None, from the size that the model saw.
        """
        placed = super().placed(source)
        if source.size is None:
            return placed
        height, width = source.size
        old = (1, 1) if self.units == "relative" else self.size or source.seen or source.size
        scaled = self.detections if old == source.size else _scaled(self.detections, width / old[1], height / old[0])
        detections = within(scaled, width, height, keep_flat=self.keeps_flat)
        if source.area is not None:
            detections = inside(detections, source.area)
        return placed.model_copy(update={"detections": detections, "units": "pixels", "size": source.size})

    @property
    def geojson(self) -> dict[str, Any]:
        """GeoJSON FeatureCollection of the boxes, as polygons in the input's coordinate system.

        Raises SaveError if GeoJSON cannot express the georeference of the input, or the input's size is unknown.
        """
        source = self._source
        georeference = None if source is None else source.georeference
        if georeference is not None and self.units == "relative":
            raise SaveError("GeoJSON needs the input's size, which is unknown; set it with placed(Source(size=...))")
        features = feature_collection(
            ((item.box, {"label": item.label, "id": item.id, "score": item.score}) for item in self.detections),
            georeference,
        )
        return {**features, "omitted": self.omitted} if self.omitted else features

    def draw(self, picture: Image) -> Image:
        """Draw the outline, label and score of each box on a picture, in the colour of its class."""
        height, width = (1, 1) if self.units == "relative" else self.size or (picture.height, picture.width)
        scaled = _scaled(self.detections, picture.width / width, picture.height / height)
        return draw_boxes(
            picture, [MarkedBox(item.box, f"{item.label} {item.score:.2f}", class_colour(item.id)) for item in scaled]
        )


def within(detections: Iterable[Detection], width: float, height: float, *, keep_flat: bool = False) -> list[Detection]:
    """Return the detections within a picture of ``width`` x ``height``, with their boxes clipped to the picture.

    Both lengths are in the unit of the boxes, such as pixels. Detections without an area within the picture are left
    out, unless ``keep_flat`` is True.
    """
    edges = (0.0, 0.0, float(width), float(height))
    boxes = ((item, cut_box(item.box, edges, keep_flat=keep_flat)) for item in detections)
    return [item.model_copy(update={"box": box}) for item, box in boxes if box is not None]


def inside(detections: Sequence[Detection], area: PlacedArea) -> list[Detection]:
    """Return the detections whose centre is inside an area of interest. Boxes must be in pixels of the input."""
    boxes = np.array([item.box for item in detections]).reshape(-1, 2, 2)
    return [item for item, kept in zip(detections, area.contains(boxes.mean(axis=1)), strict=True) if kept]


def cut_box(box: Box, edges: Box, *, keep_flat: bool = False) -> Box | None:
    """Clip ``box`` to the area of the box ``edges``.

    Return None if the result has a width or height of 0, unless ``keep_flat`` is True.
    """
    left, right = (min(max(x, edges[0]), edges[2]) for x in box[0::2])
    top, bottom = (min(max(y, edges[1]), edges[3]) for y in box[1::2])
    return (left, top, right, bottom) if keep_flat or (left < right and top < bottom) else None


def _scaled(detections: Iterable[Detection], cols: float, rows: float) -> list[Detection]:
    scale = (cols, rows, cols, rows)
    return [
        item.model_copy(update={"box": tuple(edge * by for edge, by in zip(item.box, scale, strict=True))})
        for item in detections
    ]
