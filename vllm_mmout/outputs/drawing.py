"""Text and boxes on pictures: legible on any of them, in sizes that follow the picture's own."""

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
"""First column and row, last column and row, in pixels; both within."""

_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)
_SMALLEST_TEXT = 10
"""Pixels: below this the font cannot be read."""
_LONGEST_TEXT = 200
_SHADE = 0.7
"""How much of the picture the ground of a caption hides: white text stands out even on white."""
_MOST_CAPTION, _MOST_LABELS = 0.5, 0.3
"""Part of the picture that text may cover; the first line and the first label are always there."""
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a caption."""

    text: str
    colour: Colour | None = None
    """Of a square before the text, None for none."""


@dataclass(frozen=True, slots=True)
class MarkedBox:
    """A rectangle with a label."""

    edges: tuple[float, float, float, float]
    """xmin, ymin, xmax, ymax in pixels, where (0, 0) is the upper left corner of the picture."""
    text: str
    colour: Colour


def draw_caption(picture: Image, lines: Sequence[Line]) -> Image:
    """Write lines, the most important first, on a darkened ground into the lower left corner of an RGB picture."""
    from PIL import Image, ImageDraw

    font = _font(_text_size(picture))
    step, pad = _line_height(font), max(1, round(font.size / 3))
    shown = [line for line in lines if line.text.strip()][
        : max(1, int(picture.height * _MOST_CAPTION - 2 * pad) // step)
    ]
    if not shown:
        return picture
    square = round(font.size * 0.75)
    indent = square + pad if any(line.colour for line in shown) else 0
    texts = [_fitted(line.text, font, picture.width - 2 * pad - indent) for line in shown]
    width = min(picture.width, math.ceil(max(map(font.getlength, texts))) + 2 * pad + indent)
    height = min(picture.height, step * len(shown) + 2 * pad)
    top = picture.height - height
    ground = picture.crop((0, top, width, picture.height))
    picture.paste(Image.blend(ground, Image.new("RGB", ground.size, _BLACK), _SHADE), (0, top))
    draw = ImageDraw.Draw(picture)
    for number, (line, text) in enumerate(zip(shown, texts, strict=True)):
        y = top + pad + number * step
        if line.colour is not None:
            edge = y + (step - square) // 2
            draw.rectangle((pad, edge, pad + square - 1, edge + square - 1), fill=line.colour, outline=_WHITE)
        draw.text((pad + indent, y + step // 2), text, fill=_WHITE, font=font, anchor="lm")
    return picture


def draw_boxes(picture: Image, boxes: Sequence[MarkedBox]) -> Image:
    """Outline and label rectangles, the most important first, on an RGB picture; labels without room are left out."""
    from PIL import ImageDraw

    draw = ImageDraw.Draw(picture)
    frames = [_pixels(box.edges, picture.width, picture.height) for box in boxes]
    for box, frame in reversed(list(zip(boxes, frames, strict=True))):
        _outline(draw, frame, box.colour, max(1, round(_scale(picture) * 0.003)))
    font = _font(_text_size(picture))
    taken: list[Rectangle] = []
    room = picture.width * picture.height * _MOST_LABELS
    for box, frame in zip(boxes, frames, strict=True):
        text = _fitted(box.text, font, picture.width - 4)
        size = (math.ceil(font.getlength(text)) + 4, _line_height(font))
        place = _free_place(frame, size, picture.size, taken)
        if text and place is not None and (not taken or room >= size[0] * size[1]):
            taken.append(place)
            room -= size[0] * size[1]
            draw.rectangle(place, fill=box.colour)
            middle = (place[0] + 2, (place[1] + place[3] + 1) // 2)
            draw.text(middle, text, fill=_contrast(box.colour), font=font, anchor="lm")
    return picture


def _scale(picture: Image) -> float:
    """The side of a square as large as the picture, in pixels."""
    return math.sqrt(picture.width * picture.height)


def _text_size(picture: Image) -> int:
    return max(_SMALLEST_TEXT, round(_scale(picture) * 0.025))


def _font(size: int) -> FreeTypeFont:
    """Pillow's own font, so that a picture does not depend on the machine."""
    from PIL import ImageFont

    without = SaveError("drawing text needs a Pillow built with FreeType; install Pillow anew")
    try:
        font = ImageFont.load_default(size)
    except ImportError as error:
        raise without from error
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise without
    return font


def _line_height(font: FreeTypeFont) -> int:
    ascent, descent = font.getmetrics()
    return ascent + descent


def _fitted(text: str, font: FreeTypeFont, width: int) -> str:
    shown = _drawable(text[:_LONGEST_TEXT])
    if len(text) <= _LONGEST_TEXT and font.getlength(shown) <= width:
        return shown
    while shown and font.getlength(shown + _ELLIPSIS) > width:
        shown = shown[:-1]
    return shown.rstrip() + _ELLIPSIS if shown else ""


def _drawable(text: str) -> str:
    """ASCII that comes near the text: accents are left out, what has no likeness becomes a question mark."""
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign))
    return "".join(sign if " " <= sign <= "~" else " " if sign.isspace() else "?" for sign in plain)


def _pixels(edges: tuple[float, float, float, float], width: int, height: int) -> Rectangle:
    """The pixels that a rectangle covers, at least one."""
    left, top = min(max(math.floor(edges[0]), 0), width - 1), min(max(math.floor(edges[1]), 0), height - 1)
    right, bottom = min(math.ceil(edges[2]) - 1, width - 1), min(math.ceil(edges[3]) - 1, height - 1)
    return left, top, max(right, left), max(bottom, top)


def _outline(draw: ImageDraw, frame: Rectangle, colour: Colour, width: int) -> None:
    left, top, right, bottom = frame
    rim, narrow = max(1, width // 2), min(right - left, bottom - top) + 1
    if narrow <= 2 * width:  # Pillow would draw beyond the edges
        draw.rectangle(frame, fill=colour)
    elif narrow <= 4 * (width + 2 * rim):  # the rim would fill it
        draw.rectangle(frame, outline=colour, width=width)
    else:
        draw.rectangle(frame, outline=_contrast(colour), width=width + 2 * rim)
        draw.rectangle((left + rim, top + rim, right - rim, bottom - rim), outline=colour, width=width)


def _contrast(colour: Colour) -> Colour:
    """Black or white, whichever stands out more (luma of ITU-R BT.601)."""
    red, green, blue = colour
    return _BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else _WHITE


def _free_place(
    frame: Rectangle, size: tuple[int, int], picture: tuple[int, int], taken: Sequence[Rectangle]
) -> Rectangle | None:
    """Where the label of a rectangle goes: above it, below it, or within it, where no label is yet."""
    width, height = size
    left = max(0, min(frame[0], picture[0] - width))
    for top in (frame[1] - height, frame[3] + 1, frame[1], frame[3] + 1 - height):
        place = (left, top, left + width - 1, top + height - 1)
        if top >= 0 and place[3] < picture[1] and not any(_overlap(place, other) for other in taken):
            return place
    return None


def _overlap(one: Rectangle, other: Rectangle) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]
