"""ClassificationOutput: the classes of an input, with their scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.outputs.drawing import Line, draw_caption
from vllm_mmout.outputs.rendering import class_colour
from vllm_mmout.outputs.structured import StructuredOutput

from pydantic import BaseModel, computed_field  # isort: skip - the module above says what is missing without it

if TYPE_CHECKING:
    from PIL.Image import Image


class ClassScore(BaseModel):
    """One class of an input."""

    id: int
    """As the model counts, from 0."""
    label: str
    score: float
    """From 0 to 1."""


class ClassificationOutput(StructuredOutput):
    """The classes that an input was given, the most probable first."""

    classes: list[ClassScore]
    """Sorted by score; empty where no class reached the threshold."""

    @computed_field  # type: ignore[prop-decorator] # pydantic's way, which mypy does not know
    @property
    def label(self) -> str | None:
        """The best class, None if there is none."""
        return self.classes[0].label if self.classes else None

    @computed_field  # type: ignore[prop-decorator] # as above
    @property
    def score(self) -> float | None:
        """The score of the best class, None if there is none."""
        return self.classes[0].score if self.classes else None

    def draw(self, picture: Image) -> Image:
        """Write the classes into the lower left corner, a line each, scores first: long names are cut."""
        return draw_caption(
            picture, [Line(f"{one.score:.2f} {one.label}", class_colour(one.id)) for one in self.classes]
        )
