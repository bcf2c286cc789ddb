"""KeypointsOutput, the output of models that find points in an input, such as joints of a pose."""

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

_HALF_SIDE = 0.004
"""Half the side of the square that is drawn at each point, as a fraction of the picture's longer side."""


class Keypoint(BaseModel):
    """A point that a model found in an input, such as a joint of a pose."""

    x: float
    """Horizontal position in pixels of the input, from its left edge."""
    y: float
    """Vertical position in pixels of the input, from its upper edge down."""
    score: float
    """Score of the point, from 0 to 1."""
    id: int = 0
    """Index of the point's label, such as "left knee", among the model's labels. 0 for models without labels."""
    label: str = ""
    """Name of the body part or other feature that the point marks, such as "left knee"."""
    object: int = 0
    """Index, from 0, of the object that the point belongs to, such as a person. Objects have the order of the request's
    ``boxes``. A request without ``boxes`` has only object 0."""


class KeypointsOutput(StructuredOutput):
    """Points that a model found in an input, in the order of the model's output."""

    output_kinds: ClassVar[tuple[str, ...]] = ("boxes", *StructuredOutput.output_kinds)
    formats: ClassVar[dict[str, str]] = {**StructuredOutput.formats, **formats_of("boxes")}

    keypoints: list[Keypoint]
    size: tuple[int, int]
    """(height, width) of the input in pixels. The points are positions in this input."""

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
        """Draw a square with its label at each point. Points with the same label have the same colour."""
        cols, rows = picture.width / self.size[1], picture.height / self.size[0]
        half = max(1.0, _HALF_SIDE * max(picture.size))
        marked = [
            MarkedBox(
                (point.x * cols - half, point.y * rows - half, point.x * cols + half, point.y * rows + half),
                point.label,
                class_colour(point.id),
            )
            for point in self.keypoints
        ]
        return draw_boxes(picture, marked)
