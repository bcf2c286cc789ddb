from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.outputs.rendering import default_palette
from vllm_mmout.processors.option_values import parse_palette

# Machado, Oliveira & Fernandes (2009), severity 1.0: what each kind of colour blindness makes of linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(linear):
    """CIE 1976 L*a*b* of linear sRGB, white point D65."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = linear @ np.transpose(to_xyz) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


@pytest.mark.parametrize("vision", VISION)
def test_first_colours_are_told_apart_with_every_vision(vision):
    """The first eight default colours differ by more than ten units of CIE L*a*b*, colour-blind or not."""
    share = default_palette(8) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    seen = lab(np.clip(linear @ np.transpose(VISION[vision]), 0, 1))
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 10


def test_a_class_keeps_its_colour_when_there_are_more():
    """A longer default palette begins with the shorter one."""
    longest = default_palette(65535)
    assert longest.dtype == np.uint8
    for classes in (0, 1, 2, 8, 9, 255, 300):
        np.testing.assert_array_equal(default_palette(classes), longest[:classes])


def test_no_two_of_255_classes_share_a_colour():
    """As many classes as uint8 holds beside nodata have colours of their own."""
    assert len(np.unique(default_palette(255), axis=0)) == 255


@pytest.mark.parametrize(
    "palette",
    [["#0072b2", "#D9CFB4"], [[0, 114, 178], (217, 207, 180)], np.array([[0, 114, 178], [217, 207, 180]])],
    ids=["hex", "lists", "array"],
)
def test_palettes_may_be_written_in_several_ways(palette):
    """Hexadecimal colours, lists and arrays of integers mean the same."""
    parsed = parse_palette(palette)
    assert parsed.dtype == np.uint8
    assert parsed.tolist() == [[0, 114, 178], [217, 207, 180]]


@pytest.mark.parametrize(
    ("palette", "says"),
    [
        ([], "got []"),
        ("#0072b2", "got '#0072b2'"),
        (7, "got 7"),
        (["#0072b2", "blue"], r'palette[1] must be "#rrggbb" or three integers from 0 to 255, got \'blue\''),
        ([[0, 0]], "palette[0]"),
        ([[0, 0, 0, 0]], "palette[0]"),
        ([[0, 0, 256]], "palette[0]"),
        ([[0, 0, -1]], "palette[0]"),
        ([[0.0, 0.5, 1.0]], "palette[0]"),
        ([[True, False, True]], "palette[0]"),
        ([None], "palette[0]"),
    ],
)
def test_what_is_no_colour_is_refused(palette, says):
    """An error names the place and the value of what is not understood."""
    with pytest.raises(OptionError) as caught:
        parse_palette(palette)
    assert says.replace("\\'", "'") in str(caught.value)
