"""ClassificationOutput, the output of models that classify a whole input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.outputs.drawing import Line, draw_caption
from vllm_mmout.outputs.rendering import class_colour
from vllm_mmout.outputs.structured import StructuredOutput

from pydantic import BaseModel, computed_field  # isort: skip - structured.py, imported above, raises a helpful error without pydantic

if TYPE_CHECKING:
    from PIL.Image import Image


class ClassScore(BaseModel):
    """A class that a model assigned to an input, with its score."""

    id: int
    """Index of the class in the model, from 0."""
    label: str
    """Name of the class."""
    score: float
    """Score of the class, from 0 to 1."""


class ClassificationOutput(StructuredOutput):
    """Classes that a model assigned to a whole input, the most probable first."""

    classes: list[ClassScore]
    """Classes sorted by descending score. Empty if no class reached the score threshold."""

    @computed_field  # type: ignore[prop-decorator] # mypy does not support pydantic's computed_field on a property
    @property
    def label(self) -> str | None:
        """Name of the best class, or None if ``classes`` is empty."""
        return self.classes[0].label if self.classes else None

    @computed_field  # type: ignore[prop-decorator] # mypy does not support pydantic's computed_field on a property
    @property
    def score(self) -> float | None:
        """Score of the best class, or None if ``classes`` is empty."""
        return self.classes[0].score if self.classes else None

    def draw(self, picture: Image) -> Image:
        """Draw a legend of the classes and their scores into the lower left corner. Long names are shortened."""
        return draw_caption(
            picture, [Line(f"{item.score:.2f} {item.label}", class_colour(item.id)) for item in self.classes]
        )
