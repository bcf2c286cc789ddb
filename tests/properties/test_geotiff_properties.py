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
from rasterio.control import GroundControlPoint as RasterioPoint
from rasterio.crs import CRS
from rasterio.io import MemoryFile
from rasterio.transform import Affine

from vllm_mmout.geo import Georeference, GroundControlPoint, Raster, read_raster, write_geotiff
from vllm_mmout.testing import rasters

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
quick = settings(max_examples=150, deadline=None)


@dataclass
class Scene:
    """One drawn raster, with what a GeoTIFF can say of it by name."""

    raster: Raster

    @property
    def array(self) -> np.ndarray:
        return self.raster.array

    @property
    def nodata(self) -> float | None:
        return self.raster.nodata

    @property
    def georeference(self) -> Georeference:
        return self.raster.georeference or Georeference()

    @property
    def crs(self) -> str | None:
        return self.georeference.gcps_crs if self.gcps else self.georeference.crs

    @property
    def transform(self) -> tuple[float, ...] | None:
        return self.georeference.transform

    @property
    def gcps(self) -> tuple[GroundControlPoint, ...]:
        return self.georeference.gcps

    @property
    def pixel_is_point(self) -> bool:
        return self.georeference.pixel_is_point

    @property
    def descriptions(self) -> tuple[str | None, ...]:
        return self.raster.descriptions

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self.raster.metadata)


def scenes() -> st.SearchStrategy[Scene]:
    """The rasters that the package gives to authors for their own tests."""
    return rasters().map(Scene)


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
        band_names=scene.descriptions,
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


@pytest.mark.heavy
@settings(max_examples=25, deadline=None)
@given(
    height=st.integers(500, 1100),
    width=st.integers(500, 1100),
    bands=st.integers(1, 3),
    dtype=st.sampled_from(["uint8", "int16", "float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_tiles_of_any_odd_size_come_back(height: int, width: int, bands: int, dtype: str, seed: int) -> None:
    """Around the limit from one tile to several, rasterio and we read the pixels that were written."""
    array = np.random.default_rng(seed).normal(scale=40, size=(bands, height, width)).astype(dtype)
    buffer = BytesIO()
    write_geotiff(buffer, array)
    np.testing.assert_array_equal(read_raster(buffer.getvalue()).array, array, strict=True)
    with rasterio.open(BytesIO(buffer.getvalue())) as file:
        np.testing.assert_array_equal(file.read(), array, strict=True)
        side = min(512, max(128, -(-max(height, width) // 16) * 16))
        assert file.block_shapes == [(side, side)] * bands
