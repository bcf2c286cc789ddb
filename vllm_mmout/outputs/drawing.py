"""Draw captions and labelled boxes on pictures, legible on any background and scaled with the picture."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from vllm_mmout.errors import SaveError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

Colour: TypeAlias = tuple[int, int, int]
Rectangle: TypeAlias = tuple[int, int, int, int]
"""Rectangle (first column, first row, last column, last row) in pixels. The last column and row are included."""

_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)
_SMALLEST_TEXT = 10
"""Minimum font size in pixels, so that text is legible."""
_LONGEST_TEXT = 200
"""Maximum number of characters of a line or label. Longer text is cut."""
_SHADE = 0.7
"""Opacity, 0 to 1, of the black background of captions. The background makes white text legible."""
_MAX_CAPTION, _MAX_LABELS = 0.5, 0.3
"""Maximum height of a caption as a fraction of the picture's height, and maximum total area of the labels as a fraction
of the picture's area. The first line and the first label are always drawn."""
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a caption."""

    text: str
    """Text of the line."""
    colour: Colour | None = None
    """Colour of a square to the left of the text, as in a legend. None draws no square."""


@dataclass(frozen=True, slots=True)
class MarkedBox:
    """A rectangle to draw, with a label."""

    edges: tuple[float, float, float, float]
    """Rectangle (xmin, ymin, xmax, ymax) in pixels. (0, 0) is the upper left corner of the picture."""
    text: str
    """Text of the label."""
    colour: Colour
    """Colour of the outline and of the label's background."""


def draw_caption(picture: Image, lines: Sequence[Line]) -> Image:
    """Write lines on a dark background into the lower left corner of an RGB picture, and return the picture.

    Give the most important line first, since lines without room are left out.
    """
    from PIL import Image, ImageDraw

    font = _font(_text_size(picture))
    step, pad = _line_height(font), max(1, round(font.size / 3))
    drawn = [line for line in lines if line.text.strip()][
        : max(1, int(picture.height * _MAX_CAPTION - 2 * pad) // step)
    ]
    if not drawn:
        return picture
    square = round(font.size * 0.75)
    indent = square + pad if any(line.colour for line in drawn) else 0
    texts = [_fitted(line.text, font, picture.width - 2 * pad - indent) for line in drawn]
    width = min(picture.width, math.ceil(max(map(font.getlength, texts))) + 2 * pad + indent)
    height = min(picture.height, step * len(drawn) + 2 * pad)
    top = picture.height - height
    background = picture.crop((0, top, width, picture.height))
    picture.paste(Image.blend(background, Image.new("RGB", background.size, _BLACK), _SHADE), (0, top))
    draw = ImageDraw.Draw(picture)
    for number, (line, text) in enumerate(zip(drawn, texts, strict=True)):
        y = top + pad + number * step
        if line.colour is not None:
            edge = y + (step - square) // 2
            draw.rectangle((pad, edge, pad + square - 1, edge + square - 1), fill=line.colour, outline=_WHITE)
        draw.text((pad + indent, y + step // 2), text, fill=_WHITE, font=font, anchor="lm")
    return picture


def draw_boxes(picture: Image, boxes: Sequence[MarkedBox]) -> Image:
    """Draw rectangles with their labels on an RGB picture, and return the picture.

    Give the most important rectangle first, since labels without room are left out.
    """
    from PIL import ImageDraw

    draw = ImageDraw.Draw(picture)
    frames = [_pixels(box.edges, picture.width, picture.height) for box in boxes]
    for box, frame in reversed(list(zip(boxes, frames, strict=True))):
        _outline(draw, frame, box.colour, max(1, round(_scale(picture) * 0.003)))
    font = _font(_text_size(picture))
    taken: list[Rectangle] = []
    room = picture.width * picture.height * _MAX_LABELS
    for box, frame in zip(boxes, frames, strict=True):
        text = _fitted(box.text, font, picture.width - 4)
        size = (math.ceil(font.getlength(text)) + 4, _line_height(font))
        place = _label_place(frame, size, picture.size, taken)
        if text and place is not None and (not taken or room >= size[0] * size[1]):
            taken.append(place)
            room -= size[0] * size[1]
            draw.rectangle(place, fill=box.colour)
            middle = (place[0] + 2, (place[1] + place[3] + 1) // 2)
            draw.text(middle, text, fill=_contrast(box.colour), font=font, anchor="lm")
    return picture


def _scale(picture: Image) -> float:
    """Return the square root of a picture's area in pixels. Text sizes and line widths are fractions of this length."""
    return math.sqrt(picture.width * picture.height)


def _text_size(picture: Image) -> int:
    return max(_SMALLEST_TEXT, round(_scale(picture) * 0.025))


def _font(size: int) -> FreeTypeFont:
    """Return Pillow's built-in font, so that pictures look the same on every machine."""
    from PIL import ImageFont

    missing = SaveError("drawing text needs a Pillow built with FreeType; reinstall Pillow")
    try:
        font = ImageFont.load_default(size)
    except ImportError as error:
        raise missing from error
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise missing
    return font


def _line_height(font: FreeTypeFont) -> int:
    ascent, descent = font.getmetrics()
    return ascent + descent


def _fitted(text: str, font: FreeTypeFont, width: int) -> str:
    fitted = _drawable(text[:_LONGEST_TEXT])
    if len(text) <= _LONGEST_TEXT and font.getlength(fitted) <= width:
        return fitted
    while fitted and font.getlength(fitted + _ELLIPSIS) > width:
        fitted = fitted[:-1]
    return fitted.rstrip() + _ELLIPSIS if fitted else ""


def _drawable(text: str) -> str:
    """Convert text to ASCII: remove accents, and write "?" for other characters."""
    plain = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return "".join(char if " " <= char <= "~" else " " if char.isspace() else "?" for char in plain)


def _pixels(edges: tuple[float, float, float, float], width: int, height: int) -> Rectangle:
    """Return the pixels of a box with these ``edges``, clipped to the picture, as a rectangle of 1 pixel or more."""
    left, top = min(max(math.floor(edges[0]), 0), width - 1), min(max(math.floor(edges[1]), 0), height - 1)
    right, bottom = min(math.ceil(edges[2]) - 1, width - 1), min(math.ceil(edges[3]) - 1, height - 1)
    return left, top, max(right, left), max(bottom, top)


def _outline(draw: ImageDraw, frame: Rectangle, colour: Colour, width: int) -> None:
    left, top, right, bottom = frame
    rim, narrow = max(1, width // 2), min(right - left, bottom - top) + 1
    if narrow <= 2 * width:  # Pillow would draw outside the rectangle
        draw.rectangle(frame, fill=colour)
    elif narrow <= 4 * (width + 2 * rim):  # the contrasting rim would fill the rectangle
        draw.rectangle(frame, outline=colour, width=width)
    else:
        draw.rectangle(frame, outline=_contrast(colour), width=width + 2 * rim)
        draw.rectangle((left + rim, top + rim, right - rim, bottom - rim), outline=colour, width=width)


def _contrast(colour: Colour) -> Colour:
    """Return black for a light ``colour``, and white for a dark ``colour``. Light means a luma above 128."""
    red, green, blue = colour
    return _BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else _WHITE


def _label_place(
    frame: Rectangle, size: tuple[int, int], picture: tuple[int, int], taken: Sequence[Rectangle]
) -> Rectangle | None:
    """Return where to write a label of ``size`` for the box ``frame``: above it, below it, or inside it.

    The place is within the picture, and overlaps no label in ``taken``. Return None if there is no such place.
    """
    width, height = size
    left = max(0, min(frame[0], picture[0] - width))
    for top in (frame[1] - height, frame[3] + 1, frame[1], frame[3] + 1 - height):
        place = (left, top, left + width - 1, top + height - 1)
        if top >= 0 and place[3] < picture[1] and not any(_overlap(place, other) for other in taken):
            return place
    return None


def _overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]
