"""Encode the results of a job as files, make their previews, and list their classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import MMOutError
from vllm_mmout.geo import are_classes
from vllm_mmout.outputs import ImageOutput, PolygonsOutput, RasterOutput, StructuredOutput, VideoOutput
from vllm_mmout.outputs.areas import AreasOutput
from vllm_mmout.outputs.class_areas import ClassArea
from vllm_mmout.outputs.formats.pictures import encode_picture
from vllm_mmout.outputs.rendering import PREVIEW
from vllm_mmout.serving.response.answer_budget import AnswerBudget, check_memory
from vllm_mmout.serving.response.encode import encode
from vllm_mmout.serving.response.format_choice import FormatChoice
from vllm_mmout.serving.response.result_files import Encoded
from vllm_mmout.wings.jobs.server.job import ClassRow

if TYPE_CHECKING:
    from vllm_mmout.serving.response.encode import ToResponse

_NO_COLOUR: Final = (0, 0, 0)
"""RGB colour of classes that the palette does not contain."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a job before it is stored: the encoded file, its preview, and its classes."""

    file: Encoded
    picture: Encoded | None
    """Preview as PNG, with at most `PREVIEW` pixels along the longer side. None if the result cannot be drawn."""
    classes: tuple[ClassRow, ...] | None
    """Classes of the result, or None if its pixels are not classes."""
    seconds: str | None = None
    """Length in seconds, if the result is a video."""
    assumed: tuple[str, ...] = ()
    """Sentences about defaults that were assumed because the input lacks metadata."""

    def close(self) -> None:
        """Close the encoded file of the result, and its preview."""
        self.file.close()
        if self.picture is not None:
            self.picture.close()


def make_result(
    output: Any,
    file_format: FormatChoice,
    to_response: ToResponse | None,
    folder: Path,
    assumed: tuple[str, ...] = (),
    *,
    budget: AnswerBudget | None = None,
) -> JobResult:
    """Encode an output as a file, make its preview, and list its classes. The call blocks.

    Args:
        output: the output of a processor. It is not closed.
        file_format: the format of the file.
        to_response: converts the output into a response, or None to write a file.
        folder: folder for temporary files.
        assumed: assumptions about the input, as sentences.
        budget: limit of the bytes of the result in memory. None: the default of ``--mmout-max-answer``.

    """
    budget = budget or AnswerBudget()
    check_memory(output, budget)
    classes, picture = _classes(output), _picture(output)  # first, since `encode` may take the output's file away
    seconds = f"{output.duration:.6g}" if isinstance(output, VideoOutput) else None
    return JobResult(encode(output, file_format, to_response, folder, budget), picture, classes, seconds, assumed)


def _picture(output: Any) -> Encoded | None:
    if isinstance(output, PolygonsOutput):
        output = output.classes
    if not isinstance(output, ImageOutput | RasterOutput | StructuredOutput | VideoOutput):
        return None
    from PIL.Image import Resampling

    try:
        image = output.image
    except MMOutError:  # structured data whose input was not a picture
        return None
    longer = max(image.size)
    if longer > PREVIEW:
        width, height = (max(1, round(side * PREVIEW / longer)) for side in image.size)
        # The mean of the colours of two classes would be the colour of neither.
        image = image.resize((width, height), Resampling.NEAREST if _is_coloured(output) else Resampling.BOX)
    return Encoded(encode_picture(image, "png"), "png", size=image.size)


def _is_coloured(output: Any) -> bool:
    """Return whether the picture of an output has a separate colour for each class."""
    return (
        isinstance(output, RasterOutput)
        and output.count == 1
        and output.palette is not None
        and are_classes(output.dtype, output.class_names, output.palette)
    )


def _classes(output: Any) -> tuple[ClassRow, ...] | None:
    if isinstance(output, AreasOutput):
        return tuple(_row(area, output.colour_of(area.id)) for area in output.classes)
    raster = output.classes if isinstance(output, PolygonsOutput) else output
    palette = raster.palette if _is_coloured(raster) else None
    if palette is None or raster.dtype.kind != "u" or raster.dtype.itemsize > 2:
        return None
    colours = [tuple(colour) for colour in palette.tolist()]
    return tuple(
        _row(area, colours[area.id] if area.id < len(colours) else _NO_COLOUR)
        for area in AreasOutput.of(raster).classes
    )


def _row(area: ClassArea, colour: tuple[int, ...]) -> ClassRow:
    return ClassRow(color="#" + bytes(colour).hex(), **area.model_dump())
