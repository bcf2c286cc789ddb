"""GeoTIFF, written and read, with rasterio (GDAL) as the judge of both directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rasterio.control import GroundControlPoint as RasterioPoint
from rasterio.crs import CRS
from rasterio.io import MemoryFile
from rasterio.transform import Affine

from vllm_mmout.raster import Georeference, GroundControlPoint, Raster, read_raster, write_geotiff

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
quick = settings(max_examples=150, deadline=None)

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
CODES = ("EPSG:4326", "EPSG:4269", "EPSG:4258", "EPSG:32614", "EPSG:32733", "EPSG:3857", "EPSG:2225", "EPSG:3035")
INK = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs"))
WORD = st.text(INK, min_size=1, max_size=12).filter(lambda word: not any(mark in word for mark in "\ufffe\uffff"))
PHRASE = st.lists(WORD, min_size=1, max_size=3).map(" ".join)
NAME = st.from_regex(r"[A-Z][A-Z0-9_]{0,15}", fullmatch=True).filter(  # GDAL knows no case in names
    lambda name: not name.startswith(("TIFFTAG", "AREA_OR", "DESCRIPTION"))
)
PLACE = st.floats(-1e7, 1e7, allow_nan=False)
STEP = st.floats(1e-4, 1e4)


@dataclass
class Scene:
    """One drawn raster with all that a GeoTIFF can say of it."""

    array: np.ndarray
    nodata: float | None
    crs: str | None
    transform: tuple[float, ...] | None
    gcps: tuple[GroundControlPoint, ...]
    pixel_is_point: bool
    descriptions: tuple[str | None, ...]
    metadata: dict[str, str]

    @property
    def georeference(self) -> Georeference:
        return Georeference(
            crs=None if self.gcps else self.crs,
            transform=self.transform,
            gcps=self.gcps,
            gcps_crs=self.crs if self.gcps else None,
            pixel_is_point=self.pixel_is_point,
        )


@st.composite
def transforms(draw: st.DrawFn) -> tuple[float, ...]:
    """North-up, south-up or rotated."""
    a, e, c, f = draw(STEP), draw(STEP), draw(PLACE), draw(PLACE)
    kind = draw(st.sampled_from(["north-up", "south-up", "mirrored", "rotated"]))
    if kind == "rotated":
        angle = math.radians(draw(st.floats(1, 359)))
        return (a * math.cos(angle), e * math.sin(angle), c, a * math.sin(angle), -e * math.cos(angle), f)
    return (-a if kind == "mirrored" else a, 0.0, c, 0.0, e if kind == "south-up" else -e, f)


@st.composite
def control_points(draw: st.DrawFn) -> tuple[GroundControlPoint, ...]:
    """Points on a grid of half pixels, where GDAL's shift by half a pixel loses no digit."""
    half = st.integers(0, 80).map(lambda n: n / 2)
    return tuple(
        GroundControlPoint(draw(half), draw(half), draw(PLACE), draw(PLACE), draw(st.floats(0, 9000)))
        for _ in range(draw(st.integers(3, 6)))
    )


def values_of(dtype: str) -> st.SearchStrategy[float]:
    """Values that pixels of a dtype can have."""
    if np.dtype(dtype).kind == "f":
        return st.floats(allow_nan=True, allow_infinity=False, width=np.dtype(dtype).itemsize * 8)
    limits = np.iinfo(dtype)
    return st.integers(int(limits.min), int(limits.max))


def nodata_of(dtype: str) -> st.SearchStrategy[float]:
    """Values that rasterio can tell: it has a double for the nodata of 64-bit integers as well."""
    if np.dtype(dtype).kind == "f":
        return values_of(dtype)
    limits = np.iinfo(dtype)
    return st.integers(max(int(limits.min), -(2**53)), min(int(limits.max), 2**53))


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    dtype = draw(st.sampled_from(DTYPES))
    shape = (draw(st.integers(1, 6)), draw(st.integers(1, 37)), draw(st.integers(1, 37)))
    placed = draw(st.sampled_from(["transform", "transform", "gcps", "none"]))
    crs = draw(st.sampled_from([*CODES, None]))
    return Scene(
        array=draw(hnp.arrays(dtype, shape, elements=values_of(dtype))),
        nodata=draw(st.none() | nodata_of(dtype)),
        crs="EPSG:4326" if placed == "gcps" and crs is None else crs,
        transform=draw(transforms()) if placed == "transform" else None,
        gcps=draw(control_points()) if placed == "gcps" else (),
        pixel_is_point=draw(st.booleans()) if crs is not None or placed == "gcps" else False,
        descriptions=tuple(draw(st.none() | PHRASE) for _ in range(shape[0])),
        metadata=draw(st.dictionaries(NAME, PHRASE, max_size=3)),
    )


def same_number(left: float | None, right: float | None) -> bool:
    """Whether two nodata values are the same, NaN included."""
    if left is None or right is None:
        return left is right
    return left == right or (math.isnan(left) and math.isnan(right))


def assert_same_place(scene: Scene, transform: tuple[float, ...]) -> None:
    """The transform is the scene's: exactly, but for the rounding of half a pixel there and back."""
    expected = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0) if scene.transform is None else scene.transform
    if scene.pixel_is_point:
        assert transform == pytest.approx(expected, rel=1e-12, abs=1e-8)
    else:
        assert transform == expected


def assert_same_points(scene: Scene, points: list[tuple[float, ...]]) -> None:
    assert points == [(point.row, point.col, point.x, point.y, point.z) for point in scene.gcps]


def written_by_rasterio(scene: Scene) -> bytes:
    """The scene as rasterio writes it, bands apart or interleaved as GDAL likes."""
    bands, height, width = scene.array.shape
    with MemoryFile() as memory:
        with memory.open(
            driver="GTiff",
            dtype=scene.array.dtype,
            count=bands,
            height=height,
            width=width,
            crs=None if scene.gcps else scene.crs,
            transform=None if scene.transform is None else Affine(*scene.transform),
            nodata=scene.nodata,
        ) as file:
            if scene.pixel_is_point:  # before the points: GDAL shifts them by what it knows when they are set
                file.update_tags(AREA_OR_POINT="Point")
            if scene.gcps:
                points = [RasterioPoint(p.row, p.col, p.x, p.y, p.z) for p in scene.gcps]
                file.gcps = (points, CRS.from_string(scene.crs))
            file.write(scene.array)
            file.descriptions = scene.descriptions
            file.update_tags(**scene.metadata)
        return bytes(memory.getbuffer())


def assert_read_as(scene: Scene, raster: Raster) -> None:
    place = raster.georeference or Georeference()
    np.testing.assert_array_equal(raster.array, scene.array, strict=True)
    assert same_number(raster.nodata, scene.nodata)
    assert raster.descriptions == scene.descriptions
    assert {name: raster.metadata.get(name) for name in scene.metadata} == scene.metadata
    assert place.pixel_is_point == scene.pixel_is_point
    assert (place.gcps_crs if scene.gcps else place.crs) == scene.crs
    assert_same_place(scene, place.transform or (1.0, 0.0, 0.0, 0.0, 1.0, 0.0))
    if not scene.pixel_is_point:  # GDAL itself reads points of a PixelIsPoint file half a pixel off where it put them
        assert_same_points(scene, [(point.row, point.col, point.x, point.y, point.z) for point in place.gcps])


@quick
@given(scenes())
def test_rasterio_reads_all_that_we_write(scene: Scene) -> None:
    """What we write, rasterio reads with the same pixels, place, nodata, descriptions and items."""
    buffer = BytesIO()
    write_geotiff(
        buffer,
        scene.array,
        georeference=scene.georeference,
        nodata=scene.nodata,
        descriptions=scene.descriptions,
        metadata=scene.metadata,
    )
    with MemoryFile(buffer.getvalue()) as memory, memory.open() as file:
        np.testing.assert_array_equal(file.read(), scene.array, strict=True)
        assert same_number(file.nodata, scene.nodata)
        assert file.descriptions == scene.descriptions
        assert {name: file.tags().get(name) for name in scene.metadata} == scene.metadata
        points, points_crs = file.gcps
        assert (points_crs if scene.gcps else file.crs) == (CRS.from_string(scene.crs) if scene.crs else None)
        assert_same_place(scene, tuple(file.transform)[:6])
        assert_same_points(scene, [(point.row, point.col, point.x, point.y, point.z) for point in points])
        if scene.crs is not None:
            assert file.tags()["AREA_OR_POINT"] == ("Point" if scene.pixel_is_point else "Area")


@quick
@given(scenes())
def test_we_read_all_that_rasterio_writes(scene: Scene) -> None:
    """What rasterio writes, we read with the same pixels, place, nodata, descriptions and items."""
    data = written_by_rasterio(scene)
    raster = read_raster(data)
    with MemoryFile(data) as memory, memory.open() as file:  # rasterio's own reading is the oracle
        points, _ = file.gcps
        transform = None if scene.transform is None else tuple(file.transform)[:6]
        seen = [GroundControlPoint(point.row, point.col, point.x, point.y, point.z) for point in points]
    assert (raster.georeference or Georeference()).transform == transform
    assert (raster.georeference or Georeference()).gcps == tuple(seen)
    assert_read_as(scene, raster)


@quick
@given(scenes())
def test_a_raster_carried_from_file_to_file_keeps_its_tags(scene: Scene) -> None:
    """A georeference that was read is written again with the very tags of its file."""
    raster = read_raster(written_by_rasterio(scene))
    buffer = BytesIO()
    write_geotiff(buffer, raster.array, georeference=raster.georeference, nodata=raster.nodata)
    again = read_raster(buffer.getvalue())
    assert again.georeference == raster.georeference


@settings(max_examples=25, deadline=None)
@given(
    height=st.integers(500, 1100),
    width=st.integers(500, 1100),
    bands=st.integers(1, 3),
    dtype=st.sampled_from(["uint8", "int16", "float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_tiles_of_any_odd_size_come_back(height: int, width: int, bands: int, dtype: str, seed: int) -> None:
    """Around the limit from strips to tiles, rasterio and we read the pixels that were written."""
    array = np.random.default_rng(seed).normal(scale=40, size=(bands, height, width)).astype(dtype)
    buffer = BytesIO()
    write_geotiff(buffer, array)
    np.testing.assert_array_equal(read_raster(buffer.getvalue()).array, array, strict=True)
    with rasterio.open(BytesIO(buffer.getvalue())) as file:
        np.testing.assert_array_equal(file.read(), array, strict=True)
        block = (512, 512) if max(height, width) > 512 else (height, width)
        assert file.block_shapes == [block] * bands
