"""Text and boxes on pictures of any size and content."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vllm_mmout.outputs.drawing import Line, MarkedBox, draw_boxes, draw_caption

ORANGE = (230, 159, 0)
GROUNDS = {"black": (0, 0, 0), "white": (255, 255, 255), "grey": (119, 119, 119), "orange": ORANGE}

sizes = st.tuples(st.integers(1, 90), st.integers(1, 90))
edges = st.floats(-50, 150)


def luminance(colour: np.ndarray) -> np.ndarray:
    """Relative luminance as WCAG 2.1 defines it."""
    linear = np.where(colour / 255 <= 0.04045, colour / 255 / 12.92, ((colour / 255 + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(pixels: np.ndarray) -> float:
    """The ratio of WCAG between the lightest and the darkest pixel."""
    values = luminance(pixels.reshape(-1, 3).astype(float))
    return float((values.max() + 0.05) / (values.min() + 0.05))


@settings(max_examples=150)
@given(sizes, st.lists(st.text(), max_size=5))
def test_any_text_fits_any_picture(size: tuple[int, int], texts: list[str]) -> None:
    """A caption of whatever text, down to one pixel, gives a picture of the same size."""
    image = draw_caption(Image.new("RGB", size), [Line(text, ORANGE) for text in texts])
    assert (image.mode, image.size) == ("RGB", size)


@settings(max_examples=150)
@given(sizes, st.lists(st.tuples(edges, edges, edges, edges), max_size=4), st.text())
def test_any_box_fits_any_picture(size: tuple[int, int], boxes: list[tuple[float, ...]], text: str) -> None:
    """Boxes that reach outside, lie outside or are turned over are drawn without an error."""
    image = draw_boxes(Image.new("RGB", size), [MarkedBox(box, text, ORANGE) for box in boxes])
    assert (image.mode, image.size) == ("RGB", size)


@pytest.mark.heavy
@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("side", [64, 256, 1000])
def test_captions_stand_out(side: int, ground: str) -> None:
    """On any ground the text has the contrast that WCAG asks of text, 4.5 to 1, and covers half the picture at most."""
    plain = Image.new("RGB", (side, side), GROUNDS[ground])
    image = np.asarray(draw_caption(plain.copy(), [Line("water")] * 50))
    assert contrast(image[side // 2 :]) > 4.5
    assert not (image[: side // 2] != np.asarray(plain)[: side // 2]).any()


@pytest.mark.parametrize("side", [64, 1000, 4000])
def test_text_grows_with_the_picture(side: int) -> None:
    """A line is 10 pixels high at least, and takes the same part of large pictures."""
    image = np.asarray(draw_caption(Image.new("RGB", (side, side), (255, 255, 255)), [Line("water")]))
    height = (image != 255).any(axis=(1, 2)).sum()
    assert max(10, 0.025 * side) <= height <= max(24, 0.06 * side)


@pytest.mark.heavy
@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("side", [64, 256, 1000])
@pytest.mark.parametrize("colour", [ORANGE, (0, 0, 0), (255, 255, 255)])
def test_outlines_stand_out(side: int, ground: str, colour: tuple[int, int, int]) -> None:
    """On a ground of any colour, the box's own among them, its outline is seen (3 to 1, as WCAG asks of graphics)."""
    plain = Image.new("RGB", (side, side), GROUNDS[ground])
    quarter = side / 4
    image = np.asarray(draw_boxes(plain, [MarkedBox((quarter, quarter, 3 * quarter, 3 * quarter), "", colour)]))
    assert contrast(image[side // 2, : side // 2]) > 3
    np.testing.assert_array_equal(image[side // 2, side // 2], GROUNDS[ground])
    outside = np.ones((side, side), bool)
    outside[side // 4 : side * 3 // 4, side // 4 : side * 3 // 4] = False
    assert (image[outside] == GROUNDS[ground]).all()


@given(st.tuples(*[st.integers(0, 60)] * 4), st.sampled_from([60, 1000]))
def test_outlines_stay_within_their_box(corners: tuple[int, int, int, int], side: int) -> None:
    """However small a box is, no pixel beside it is drawn upon."""
    left, right = sorted(corners[:2])
    top, bottom = sorted(corners[2:])
    box = (left, top, right + 1, bottom + 1)
    image = np.asarray(draw_boxes(Image.new("RGB", (side + 10, side + 10)), [MarkedBox(box, "", ORANGE)])).any(axis=2)
    assert image.any()
    image = image.copy()
    image[top : bottom + 1, left : right + 1] = False
    assert not image.any()


def areas_of_labels(side: int, places: list[tuple[int, int]]) -> list[int]:
    """Pixels of each label, where every box is one pixel and labels are blank."""
    boxes = [MarkedBox((x, y, x + 1, y + 1), " " * 8, (number, 0, 255)) for number, (x, y) in enumerate(places)]
    image = np.asarray(draw_boxes(Image.new("RGB", (side, side)), boxes))
    return [int((image == box.colour).all(axis=2).sum()) for box in boxes]


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.integers(0, 299)] * 2), min_size=1, max_size=12))
def test_labels_do_not_cover_each_other(places: list[tuple[int, int]]) -> None:
    """Each label is whole, or, where it would cover one of a better box, left out; the best has its own."""
    whole = areas_of_labels(300, [(150, 150)])[0] - 1  # the box itself lies beside its label
    areas = areas_of_labels(300, places)
    assert areas[0] >= whole > 200
    assert all(area <= 1 or area in (whole, whole + 1) for area in areas)


def test_labels_leave_most_of_the_picture_free() -> None:
    """In a small picture only the best boxes get labels: they cover a third of it at most."""
    areas = areas_of_labels(64, [(0, y) for y in range(13, 64, 13)])
    assert 0 < sum(areas) < 64 * 64 / 3


def test_letters_that_the_font_lacks_are_spelt_without_accents() -> None:
    """What the font cannot draw is drawn as near as it can, the same for the same letter."""
    drawn = [
        draw_caption(Image.new("RGB", (200, 40)), [Line(text)]).tobytes() for text in ("Wälder", "Walder", "W?lder")
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_long_text_ends_in_dots() -> None:
    """Text that is too long is cut before the edge, not by it."""
    image = np.asarray(draw_caption(Image.new("RGB", (100, 40)), [Line("m" * 500)]))
    assert not image[:, -2:].any()
    assert image[:, 60:].any()
