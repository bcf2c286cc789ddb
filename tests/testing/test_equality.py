from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch", reason="torch tensors are among what is compared")

from pydantic import PrivateAttr  # noqa: E402 - comes with the engine

from vllm_mmout import ImageOutput, RasterOutput, StructuredOutput, TensorOutput  # noqa: E402
from vllm_mmout.geo import Georeference  # noqa: E402
from vllm_mmout.testing import difference  # noqa: E402

pytestmark = pytest.mark.engine

NAN = float("nan")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Flood(StructuredOutput):
    depth: float
    where: tuple[tuple[int, int], ...] = ()
    _hidden: int = PrivateAttr(default=0)


class Packed(msgspec.Struct):
    depth: float


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    array: np.ndarray
    note: str = field(default="", compare=False)


def flood(depth, hidden=0):
    made = Flood(depth=depth, where=((1, 2),))
    made._hidden = hidden
    return made


def raster(value=1.0, **options):
    return RasterOutput(np.full((1, 2, 2), value, np.float32), nodata=math.nan, **options)


def picture(colour, mode="L"):
    return Image.new(mode, (3, 2), colour)


ALIKE = [
    None,
    1,
    NAN,
    complex(1, NAN),
    "text",
    b"bytes",
    [1, (NAN, {"a": {2, 3}})],
    {"a": np.array([NAN, -0.0])},
    np.float32(NAN),
    np.array([["a", None, NAN]], dtype=object),
    np.array([(1, NAN)], dtype=[("a", "i4"), ("b", "f8")]),
    np.array(["NaT", "2024-01-01"], dtype="datetime64[s]"),
    np.zeros((0, 3)),
    torch.tensor([1.0, NAN]).to(torch.bfloat16),
    torch.tensor([1 + 2j]).conj(),
    range(3),
    Colour.RED,
]


def copied(value):
    """The same once more, as another object where there is a copy."""
    return value.clone() if isinstance(value, torch.Tensor) else value.copy() if hasattr(value, "copy") else value


@pytest.mark.parametrize("value", ALIKE, ids=repr)
def test_equal_values_do_not_differ(value):
    """Values of every kind equal their copies; NaN equals NaN at any depth."""
    assert difference(value, copied(value)) is None


@pytest.mark.parametrize(
    "make",
    [
        raster,
        lambda: raster(georeference=Georeference(crs="EPSG:4326", transform=(1, 0, 0, 0, -1, 0)), metadata={"a": "b"}),
        lambda: TensorOutput({"a": np.array([NAN]), "b": np.arange(3)}),
        lambda: ImageOutput(np.zeros((2, 3, 4), np.uint8)),
        lambda: flood(NAN),
        lambda: Packed(NAN),
        lambda: Record(np.array([NAN])),
        lambda: picture(3),
    ],
)
def test_equal_objects_do_not_differ(make):
    """Output objects that were made alike do not differ, although they are not the same object."""
    assert difference(make(), make()) is None
    assert difference([make()], [make()]) is None


DIFFER = [
    (1, 1.0, "result is int and float"),
    (1, True, "result is int and bool"),
    (None, 0, "result is None and int"),
    (0.0, -0.0, r"result is 0.0 and -0.0 \(1 of 1 differ\)"),
    (1.0, NAN, "result is 1.0 and nan"),
    ("a", "b", "result is 'a' and 'b'"),
    ([1], [1, 2], "result has 1 and 2 items"),
    ([1, [2]], [1, [3]], r"result\[1\]\[0\] is 2 and 3"),
    ({"a": 1}, {"b": 1}, r"result\['a'\] is in one of the two only"),
    ({}, {"b": 1}, r"result\['b'\] is in one of the two only"),
    ({1}, {2}, r"result is \{1\} and \{2\}"),
    (np.zeros(2), np.zeros((2, 1)), r"result is float64 \[2\] and float64 \[2, 1\]"),
    (np.zeros(2), np.zeros(2, np.float32), r"result is float64 \[2\] and float32 \[2\]"),
    (np.zeros((2, 2)), np.eye(2), r"result\[0, 0\] is 0.0 and 1.0 \(2 of 4 differ\)"),
    (np.array([1, None]), np.array([1, 2], dtype=object), r"result\[1\] is None and int"),
    (np.array([(1, 2)], dtype="i4,i4"), np.array([(1, 3)], dtype="i4,i4"), r"result\['f1'\]\[0\] is 2 and 3"),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float16), r"result is torch.float32 and torch.float16"),
    (torch.zeros(2).bfloat16(), torch.ones(2).bfloat16(), r"result\[0\] is 0.0 and 1.0"),
    (Colour.RED, Colour.BLUE, "RED.* and .*BLUE"),
    (raster(1.0), raster(2.0), r"result.array\[0, 0, 0\] is 1.0 and 2.0 \(4 of 4 differ\)"),
    (raster(), raster(band_names=["a"]), r"result.band_names has 0 and 1 items"),
    (raster(georeference=Georeference(crs="EPSG:4326")), raster(georeference=Georeference(crs="EPSG:3857")),
     "result.georeference.crs is 'EPSG:4326' and 'EPSG:3857'"),
    (flood(1.0), flood(2.0), "result.depth is 1.0 and 2.0"),
    (flood(1.0), flood(1.0, hidden=3), "result._hidden is 0 and 3"),
    (Packed(1.0), Packed(2.0), "result.depth is 1.0 and 2.0"),
    (Record(np.zeros(1)), Record(np.ones(1)), r"result.array\[0\] is 0.0 and 1.0"),
    (picture(3), picture(4), r"result\[0, 0\] is 3 and 4"),
    (picture(3), picture(3, "P"), r"result is L \(3, 2\) and P \(3, 2\)"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right", "says"), DIFFER)
def test_what_differs_is_named(left, right, says):
    """Two values that differ give the place and both values, either way round."""
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(difference(left, right))
    assert difference(right, left) is not None


def test_palettes_of_pictures_count():
    """Two pictures with the same indices and other colours differ."""
    one, other = picture(1, "P"), picture(1, "P")
    one.putpalette([0, 0, 0, 255, 0, 0])
    other.putpalette([0, 0, 0, 0, 0, 255])
    assert difference(one, other) == "the palette of result differs"


def test_fields_that_do_not_count_are_passed_over():
    """A dataclass says itself which fields are compared."""
    assert difference(Record(np.ones(1), "a"), Record(np.ones(1), "b")) is None


def test_objects_that_nobody_can_compare_are_an_error():
    """Two objects without a way to compare them are neither equal nor different; one and the same is equal."""
    one, other = object(), object()
    with pytest.raises(AssertionError, match=r"compare two object \(result\[0\]\).*give equal="):
        difference([one], [other])
    assert difference([one], [one]) is None
    assert difference(one, other, equal=lambda left, right: True) is None
