"""What is made of a job's result when it is there: its file, its picture, and the table of its classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import MMOutError
from vllm_mmout.outputs import ImageOutput, PolygonsOutput, RasterOutput, StructuredOutput
from vllm_mmout.outputs.areas import AreasOutput, ClassArea
from vllm_mmout.outputs.known import are_classes
from vllm_mmout.outputs.pictures import encode_picture
from vllm_mmout.outputs.preview import PREVIEW
from vllm_mmout.serving.encode import Asked, encode
from vllm_mmout.serving.encoded import Encoded
from vllm_mmout.serving.scenes.record import ClassRow

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.serving.encode import ToResponse

_UNKNOWN = (0, 0, 0)
"""What a picture shows where a palette has no colour."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One result of a job; whoever stores the files closes them."""

    file: Encoded
    picture: Encoded | None
    """PNG, its longer side at most `PREVIEW` pixels; None where the result is no picture."""
    classes: tuple[ClassRow, ...] | None
    """None of a result that has none."""

    def close(self) -> None:
        """Let the files go."""
        self.file.close()
        if self.picture is not None:
            self.picture.close()


def finished(output: Any, asked: Asked, to_response: ToResponse | None, folder: Path) -> Finished:
    """Make all that is kept of an output, which is not closed; blocks.

    Args:
        output: what the processor made.
        asked: what the client asked for.
        to_response: as of `encode`.
        folder: in which a file is made.

    Raises:
        OptionError, DecodeError, SaveError: as of `encode`.

    """
    classes, picture = _classes(output), _picture(output)  # before a file is handed over
    file = encode(output, asked, to_response, folder)
    return Finished(file, picture, classes)


def _picture(output: Any) -> Encoded | None:
    if isinstance(output, PolygonsOutput):
        output = output.classes
    if not isinstance(output, ImageOutput | RasterOutput | StructuredOutput):
        return None
    try:
        image = _reduced(output.image, coloured=_is_coloured(output))
    except MMOutError:  # of data that was made of no picture
        return None
    return Encoded(encode_picture(image, "png", {}), "png", size=image.size)


def _reduced(image: Image, *, coloured: bool) -> Image:
    """A picture no larger than a preview; colours of classes have no mean."""
    from PIL.Image import Resampling

    longer = max(image.size)
    if longer <= PREVIEW:
        return image
    width, height = (max(1, round(side * PREVIEW / longer)) for side in image.size)
    return image.resize((width, height), Resampling.NEAREST if coloured else Resampling.BOX)


def _is_coloured(output: Any) -> bool:
    """Whether the picture of an output has a colour a class."""
    return (
        isinstance(output, RasterOutput)
        and output.count == 1
        and output.palette is not None
        and are_classes(output.dtype, class_names=output.class_names, palette=output.palette)
    )


def _classes(output: Any) -> tuple[ClassRow, ...] | None:
    if isinstance(output, AreasOutput):
        return tuple(_row(one, output.colour_of(one.id)) for one in output.classes)
    raster = output.classes if isinstance(output, PolygonsOutput) else output
    palette = raster.palette if _is_coloured(raster) else None
    if palette is None or raster.dtype.kind != "u" or raster.dtype.itemsize > 2:
        return None
    colours = [tuple(colour) for colour in palette.tolist()]
    return tuple(
        _row(one, colours[one.id] if one.id < len(colours) else _UNKNOWN) for one in AreasOutput.of(raster).classes
    )


def _row(one: ClassArea, colour: tuple[int, ...]) -> ClassRow:
    return ClassRow(
        id=one.id,
        name=one.name,
        color="#" + bytes(colour).hex(),
        pixels=one.pixels,
        share=one.share,
        area_m2=one.area_m2,
    )
