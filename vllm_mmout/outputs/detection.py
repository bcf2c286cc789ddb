"""DetectionOutput: objects found in an input, as boxes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs.drawing import MarkedBox, draw_boxes
from vllm_mmout.outputs.formats import formats_of
from vllm_mmout.outputs.formats.geojson import feature_collection
from vllm_mmout.outputs.rendering import class_colour
from vllm_mmout.outputs.structured import StructuredOutput

from pydantic import BaseModel, Field  # isort: skip - the module above says what is missing without it

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.outputs.base import Source

Box: TypeAlias = tuple[float, float, float, float]
"""xmin, ymin, xmax, ymax."""


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
    omitted: Annotated[int, Field(ge=0, exclude_if=lambda count: count == 0)] = 0
    """How many more objects had a score above the threshold and were left out, since a limit allows no more. JSON has
    the field where it is not 0."""

    keeps_flat: Annotated[bool, Field(exclude=True, repr=False)] = False
    """Whether boxes without an area within the input are kept; JSON does not have the field."""

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
        detections = within(found, width, height, keep_flat=self.keeps_flat)
        return placed.model_copy(update={"detections": detections, "units": "pixels", "size": source.size})

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
        features = feature_collection(
            ((one.box, {"label": one.label, "id": one.id, "score": one.score}) for one in self.detections),
            georeference,
        )
        return {**features, "omitted": self.omitted} if self.omitted else features

    def draw(self, picture: Image) -> Image:
        """Outline the boxes in the colours of their classes, with label and score."""
        height, width = (1, 1) if self.units == "relative" else self.size or (picture.height, picture.width)
        marked = _scaled(self.detections, picture.width / width, picture.height / height)
        return draw_boxes(
            picture, [MarkedBox(one.box, f"{one.label} {one.score:.2f}", class_colour(one.id)) for one in marked]
        )


def within(detections: Iterable[Detection], width: float, height: float, *, keep_flat: bool = False) -> list[Detection]:
    """Return the detections with boxes cut off at the edges of a picture, in their unit.

    Detections without an area within the picture are left out, unless ``keep_flat`` is true.
    """
    edges = (0.0, 0.0, float(width), float(height))
    boxes = ((one, cut_box(one.box, edges, keep_flat=keep_flat)) for one in detections)
    return [one.model_copy(update={"box": box}) for one, box in boxes if box is not None]


def cut_box(box: Box, edges: Box, *, keep_flat: bool = False) -> Box | None:
    """Return a box cut off at edges, or None if it has no area within them and ``keep_flat`` is false."""
    left, right = (min(max(at, edges[0]), edges[2]) for at in box[0::2])
    top, bottom = (min(max(at, edges[1]), edges[3]) for at in box[1::2])
    return (left, top, right, bottom) if keep_flat or (left < right and top < bottom) else None


def _scaled(detections: Iterable[Detection], cols: float, rows: float) -> list[Detection]:
    scale = (cols, rows, cols, rows)
    return [
        one.model_copy(update={"box": tuple(edge * by for edge, by in zip(one.box, scale, strict=True))})
        for one in detections
    ]
