"""StructuredOutput, the base class of outputs with typed fields (pydantic models)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs.base import Savable
from vllm_mmout.outputs.drawing import Line, draw_caption
from vllm_mmout.outputs.formats import formats_of

try:
    from pydantic import BaseModel, PrivateAttr
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'StructuredOutput needs pydantic, which comes with the engine; pip install "vllm-mmout[cpu]"', name="pydantic"
    ) from error

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.outputs.base import Source


@dataclass(frozen=True, slots=True)
class _SourceHolder:
    """Holder of the description of a result's input. All holders are equal to each other.

    The description is thus excluded from comparisons: two results with equal fields are equal even if their inputs
    differ.
    """

    source: Source | None = field(default=None, compare=False, repr=False)


class StructuredOutput(Savable, BaseModel):
    """Base class of outputs that are data, such as detected objects. Subclass it and declare the fields.

    It is saved as JSON of the fields or as the picture `image`. Override `draw` to change how the result is drawn.
    """

    output_kinds: ClassVar[tuple[str, ...]] = ("structured",)
    formats: ClassVar[dict[str, str]] = formats_of("structured", first="json")

    _path: str | None = PrivateAttr(default=None)
    _input: _SourceHolder = PrivateAttr(default=_SourceHolder())

    @property
    def path(self) -> str | None:
        """Path of the file that the output was written to, or None if the request did not ask for a file."""
        return self._path

    @path.setter
    def path(self, path: str | None) -> None:
        self._path = path

    @property
    def _source(self) -> Source | None:
        """Description of the result's input as set by `placed`, or None."""
        return self._input.source

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions made about the input, one sentence each."""
        return () if self._source is None else self._source.assumed

    def placed(self, source: Source) -> Self:
        """Return a copy of the result that holds ``source``, the description of the result's input.

        Drawing and GeoJSON export need the description.
        """
        placed = self.model_copy()
        placed._input = _SourceHolder(source)  # noqa: SLF001 - an object of this class
        return placed

    @property
    def image(self) -> Image:
        """RGB picture of the input with the result drawn over it. SaveError is raised if the input lacks a picture."""
        if (source := self._source) is None or source.picture is None:
            reason = "it has no input" if source is None else "its input has no picture"
            raise SaveError(
                f"this {type(self).__name__} cannot be drawn: {reason}; give it an input with"
                " placed(Source(picture=...)), or save it as .json"
            )
        picture = source.picture()
        # The input's picture may be shared, so a copy is drawn on.
        return self.draw(picture.copy() if picture.mode == "RGB" else picture.convert("RGB"))

    def draw(self, picture: Image) -> Image:
        """Draw the result on ``picture``, an RGB copy of the input, and return the picture.

        By default the fields are written as a caption.
        """
        return draw_caption(picture, [Line(f"{name}: {getattr(self, name)}") for name in type(self).model_fields])

    def _repr_png_(self) -> bytes | None:
        return None if self._source is None or self._source.picture is None else self.to_bytes("png")
