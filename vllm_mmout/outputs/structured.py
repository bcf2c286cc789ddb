"""StructuredOutput: fields with types, as a pydantic model that can be drawn over its input."""

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
class _Input:
    """Holds the source, which is no part of the result: results with equal fields are equal wherever they lie."""

    source: Source | None = field(default=None, compare=False, repr=False)


class StructuredOutput(Savable, BaseModel):
    """Base of results that are data rather than media: subclass it and declare the fields.

    Files are JSON of the fields, or the picture of `image`. To say how the result is drawn, override `draw`.
    """

    output_kinds: ClassVar[tuple[str, ...]] = ("structured",)
    formats: ClassVar[dict[str, str]] = formats_of("structured", first="json")

    _path: str | None = PrivateAttr(default=None)
    _input: _Input = PrivateAttr(default=_Input())

    @property
    def path(self) -> str | None:
        """The file that holds the result, where the request asked for one."""
        return self._path

    @path.setter
    def path(self, path: str | None) -> None:
        self._path = path

    @property
    def _source(self) -> Source | None:
        """The input that the result was made from, where `placed` has laid it on one."""
        return self._input.source

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was assumed about the input, see `MediaOutput.assumed`."""
        return () if self._source is None else self._source.assumed

    def placed(self, source: Source) -> Self:
        """The same result, which knows the input it was made from."""
        placed = self.model_copy()
        placed._input = _Input(source)  # noqa: SLF001 - of our own copy
        return placed

    @property
    def image(self) -> Image:
        """The result drawn over the picture of its input, RGB; SaveError where there is none."""
        if (source := self._source) is None or source.picture is None:
            why = "it lies on no input" if source is None else "its input has no picture"
            raise SaveError(
                f"this {type(self).__name__} cannot be drawn: {why}; lay it on one with"
                " placed(Source(picture=...)), or save it as .json"
            )
        picture = source.picture()
        # The input's picture may be shared: a copy is drawn upon.
        return self.draw(picture.copy() if picture.mode == "RGB" else picture.convert("RGB"))

    def draw(self, picture: Image) -> Image:
        """Draw over ``picture``, an RGB copy that may be drawn upon; by default the fields become a caption."""
        return draw_caption(picture, [Line(f"{name}: {getattr(self, name)}") for name in type(self).model_fields])

    def _repr_png_(self) -> bytes | None:
        return None if self._source is None or self._source.picture is None else self.to_bytes("png")
