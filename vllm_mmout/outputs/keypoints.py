"""KeypointsOutput, the points found in an input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.outputs.drawing import MarkedBox, draw_boxes
from vllm_mmout.outputs.formats import formats_of
from vllm_mmout.outputs.formats.geojson import feature_collection
from vllm_mmout.outputs.rendering import class_colour
from vllm_mmout.outputs.structured import StructuredOutput

from pydantic import BaseModel  # isort: skip - structured.py, imported above, raises a helpful error without pydantic

if TYPE_CHECKING:
    from PIL.Image import Image

_HALF = 0.004
"""Half the side of the square drawn for a point, as a fraction of the picture's longer side."""


class Keypoint(BaseModel):
    """A point found in an input."""

    x: float
    """Horizontal position in pixels of the input, from its left edge."""
    y: float
    """Vertical position in pixels of the input, from its upper edge."""
    score: float
    """Score of the point, from 0 to 1."""
    id: int = 0
    """Index of the kind of point in the model, such as a joint of a pose. 0 if the model has a single kind of point."""
    label: str = ""
    """Name of the kind of point."""
    object: int = 0
    """Index of the object that the point belongs to, from 0, in the order of the request's objects."""


class KeypointsOutput(StructuredOutput):
    """The points found in an input, in the order of the model."""

    output_kinds: ClassVar[tuple[str, ...]] = ("boxes", *StructuredOutput.output_kinds)
    formats: ClassVar[dict[str, str]] = {**StructuredOutput.formats, **formats_of("boxes")}

    keypoints: list[Keypoint]
    size: tuple[int, int]
    """(height, width) in pixels of the input that the points refer to."""

    @property
    def geojson(self) -> dict[str, Any]:
        """GeoJSON FeatureCollection of the points in the input's coordinate system.

        Raises SaveError if GeoJSON cannot express the georeference of the input.
        """
        georeference = None if self._source is None else self._source.georeference
        return feature_collection(
            (((point.x, point.y), point.model_dump(exclude={"x", "y"})) for point in self.keypoints), georeference
        )

    def draw(self, picture: Image) -> Image:
        """Draw a labelled square at each point, in the colour of the kind of point."""
        cols, rows = picture.width / self.size[1], picture.height / self.size[0]
        half = max(1.0, _HALF * max(picture.size))
        marked = [
            MarkedBox(
                (point.x * cols - half, point.y * rows - half, point.x * cols + half, point.y * rows + half),
                point.label,
                class_colour(point.id),
            )
            for point in self.keypoints
        ]
        return draw_boxes(picture, marked)
