"""Hypothesis strategies for georeferenced rasters that GeoTIFF can store, and for the options of requests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vllm_mmout.geo import Affine, Georeference, GroundControlPoint, Raster
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.base import OutputProcessor

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
"""Pixel types that GeoTIFF, rasterio and this package all support."""
CODES = ("EPSG:4326", "EPSG:4269", "EPSG:4258", "EPSG:32614", "EPSG:32733", "EPSG:3857", "EPSG:2225", "EPSG:3035")
"""Coordinate reference systems in degrees, metres and feet, from which `georeferences` draws."""

_INK = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs"))
_WORD = st.text(_INK, min_size=1, max_size=12).filter(lambda word: not any(mark in word for mark in "\ufffe\uffff"))
_PHRASE = st.lists(_WORD, min_size=1, max_size=3).map(" ".join)
_NAME = st.from_regex(r"[A-Z][A-Z0-9_]{0,15}", fullmatch=True).filter(  # upper case: GDAL ignores case in names
    lambda name: not name.startswith(("TIFFTAG", "AREA_OR", "DESCRIPTION"))
)
_PLACE = st.floats(-1e7, 1e7, allow_nan=False)
_STEP = st.floats(1e-4, 1e4)
_SAFE = 2**53
"""Largest nodata value that `rasters` generates for 64-bit integers. Rasterio stores nodata as a double, which is exact
up to this value."""

_BANDS = st.lists(st.integers(1, 12) | st.sampled_from(["B02", "B03", "red"]), min_size=1, max_size=4).map(tuple)
_INDICES = st.lists(st.integers(0, 11), min_size=1, max_size=4).map(tuple)
_NODATA = st.none() | st.sampled_from([0.0, -9999.0, float("nan")])


@st.composite
def rasters(
    draw: st.DrawFn,
    bands: int | tuple[int, int] = (1, 6),
    height: int | tuple[int, int] = (1, 37),
    width: int | tuple[int, int] = (1, 37),
    *,
    dtypes: tuple[str, ...] = DTYPES,
    placed: bool = True,
) -> Raster:
    """Draw a `Raster` [bands, height, width] with random pixels, nodata, georeference and metadata.

    Args:
        draw: passed by hypothesis.
        bands: number of bands, or the smallest and the largest number; the same for ``height`` and ``width``.
        height: number of rows.
        width: number of columns.
        dtypes: pixel types to choose from.
        placed: whether rasters may have a georeference.

    """
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(_span(span)) for span in (bands, height, width))
    return Raster(
        array=draw(hnp.arrays(dtype, shape, elements=_pixels(dtype))),
        nodata=draw(st.none() | _pixels(dtype, _SAFE)),
        georeference=draw(st.none() | georeferences()) if placed else None,
        descriptions=tuple(draw(st.none() | _PHRASE) for _ in range(shape[0])),
        metadata=draw(st.dictionaries(_NAME, _PHRASE, max_size=3)),
    )


@st.composite
def georeferences(draw: st.DrawFn) -> Georeference:
    """Generate a random `Georeference`: a transform, ground control points, or only a coordinate system.

    A transform has any orientation, and may lack a coordinate system. Control points always have a coordinate system.
    """
    crs = draw(st.sampled_from([*CODES, None]))
    point = crs is not None and draw(st.booleans())
    if crs is not None and draw(st.booleans()):
        return Georeference(gcps=draw(_control_points()), gcps_crs=crs, pixel_is_point=point)
    transforms = _transforms() if crs is None else st.none() | _transforms()
    return Georeference(crs=crs, transform=draw(transforms), pixel_is_point=point)


@st.composite
def output_params(
    draw: st.DrawFn, processor: OutputProcessor | type[OutputProcessor] | None = None, *, free: bool = True
) -> OutputParams:
    """Draw random request options that a processor must accept. Hypothesis shrinks them to ``OutputParams()``.

    Args:
        draw: passed by hypothesis.
        processor: ``output`` is drawn from its ``outputs`` and None; without a processor it is None.
        free: whether to set options about reading the *input* as well (``bands``, ``indices``, ``nodata``,
            ``overlap``), and about previews of a scene (``partial_images``); a processor receives them and should
            ignore them.

    """
    output = draw(st.sampled_from((None, *(() if processor is None else processor.outputs))))
    if not free:
        return OutputParams(output=output)
    selection = draw(st.sampled_from(["none", "bands", "indices"]))
    return OutputParams(
        output=output,
        bands=draw(_BANDS) if selection == "bands" else None,
        indices=draw(_INDICES) if selection == "indices" else None,
        nodata=draw(_NODATA),
        overlap=draw(st.integers(0, 64)),
        partial_images=draw(st.integers(0, 3)),
    )


@st.composite
def _transforms(draw: st.DrawFn) -> Affine:
    a, e, c, f = draw(_STEP), draw(_STEP), draw(_PLACE), draw(_PLACE)
    kind = draw(st.sampled_from(["north-up", "south-up", "mirrored", "rotated"]))
    if kind == "rotated":
        angle = math.radians(draw(st.floats(1, 359)))
        return (a * math.cos(angle), e * math.sin(angle), c, a * math.sin(angle), -e * math.cos(angle), f)
    return (-a if kind == "mirrored" else a, 0.0, c, 0.0, e if kind == "south-up" else -e, f)


@st.composite
def _control_points(draw: st.DrawFn) -> tuple[GroundControlPoint, ...]:
    """Generate ground control points whose pixel positions are multiples of 0.5.

    A shift of such a position by half a pixel, which some formats need, causes no rounding error.
    """
    half = st.integers(0, 80).map(lambda number: number / 2)
    return tuple(
        GroundControlPoint(draw(half), draw(half), draw(_PLACE), draw(_PLACE), draw(st.floats(0, 9000)))
        for _ in range(draw(st.integers(3, 6)))
    )


def _span(span: int | tuple[int, int]) -> st.SearchStrategy[int]:
    return st.just(span) if isinstance(span, int) else st.integers(*span)


def _pixels(dtype: str, most: int = 2**64) -> st.SearchStrategy[Any]:
    if dtype == "float32":
        return st.floats(allow_infinity=False, width=32)
    if dtype.startswith("float"):
        return st.floats(allow_infinity=False)
    limits = np.iinfo(dtype)
    return st.integers(max(int(limits.min), -most), min(int(limits.max), most))
