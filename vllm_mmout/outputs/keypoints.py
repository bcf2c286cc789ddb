"""KeypointsOutput: points found in an input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.outputs.drawing import MarkedBox, draw_boxes
from vllm_mmout.outputs.formats import formats_of
from vllm_mmout.outputs.formats.geojson import feature_collection
from vllm_mmout.outputs.rendering import class_colour
from vllm_mmout.outputs.structured import StructuredOutput

from pydantic import BaseModel  # isort: skip - the module above says what is missing without it

if TYPE_CHECKING:
    from PIL.Image import Image

_HALF = 0.004
"""Half the side of a drawn point, of the longer side of the picture."""


class Keypoint(BaseModel):
    """One point that was found."""

    x: float
    y: float
    """In pixels of the input, from its upper left corner."""
    score: float
    """From 0 to 1."""
    id: int = 0
    """What it is of, as the model counts: the joint of a pose; 0 of models whose points are all alike."""
    label: str = ""
    object: int = 0
    """Which of the request's objects it belongs to, from 0."""


class KeypointsOutput(StructuredOutput):
    """The points that were found in an input, in the order of the model."""

    output_kinds: ClassVar[tuple[str, ...]] = ("boxes", *StructuredOutput.output_kinds)
    formats: ClassVar[dict[str, str]] = {**StructuredOutput.formats, **formats_of("boxes")}

    keypoints: list[Keypoint]
    size: tuple[int, int]
    """(height, width) of the input, in whose pixels the points are."""

    @property
    def geojson(self) -> dict[str, Any]:
        """A FeatureCollection of points in the coordinate system of the input.

        SaveError: the input has no georeference of the kind that GeoJSON can name.
        """
        georeference = None if self._source is None else self._source.georeference
        return feature_collection(
            (((one.x, one.y), one.model_dump(exclude={"x", "y"})) for one in self.keypoints), georeference
        )

    def draw(self, picture: Image) -> Image:
        """Mark the points, in the colours of what they are of."""
        cols, rows = picture.width / self.size[1], picture.height / self.size[0]
        half = max(1.0, _HALF * max(picture.size))
        marked = [
            MarkedBox(
                (one.x * cols - half, one.y * rows - half, one.x * cols + half, one.y * rows + half),
                one.label,
                class_colour(one.id),
            )
            for one in self.keypoints
        ]
        return draw_boxes(picture, marked)
