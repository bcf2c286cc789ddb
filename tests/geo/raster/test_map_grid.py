"""Grids of maps: their extent around rasters, and rasters that have no place on them."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import InputError, OutsideError
from vllm_mmout.geo import Georeference, GroundControlPoint, MapGrid, PlacedRaster

PLACE = Georeference(crs="EPSG:32632", transform=(30, 0, 500_000, 0, -30, 5_000_000))
MOON = 'GEOGCS["Moon",DATUM["Moon",SPHEROID["Moon",1737400,0]],PRIMEM["0",0],UNIT["degree",0.0174532925199433]]'


def raster(place=PLACE, size=(10, 20)):
    """A raster called a.tif."""
    return PlacedRaster("a.tif", place, size)


def test_a_grid_keeps_its_pixels_around_rasters():
    """The pixels' edges stay where they are, parts of pixels are covered, and rounding adds no row or column."""
    grid = MapGrid.of(raster())
    assert grid.around([raster()]) == grid
    off = Georeference(crs="EPSG:32632", transform=(30, 0, 500_045, 0, -30, 5_000_000 + 1e-6))
    around = grid.around([raster(), raster(off)])
    assert around.size == (10, 22)
    assert around.georeference == PLACE
    assert grid.around([raster(off)]).georeference.transform == (30, 0, 500_030, 0, -30, 5_000_000)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (None, "has no coordinate system"),
        (Georeference(crs="EPSG:32632"), "has no transform"),
        (Georeference(gcps=(GroundControlPoint(0, 0, 9, 9),), gcps_crs="EPSG:4326"), "has ground control points but"),
        (Georeference(transform=(30, 0, 5, 0, -30, 5)), "has no coordinate system"),
        (Georeference(crs="EPSG:32632", transform=(30, 0, 5, 0, 0, 5)), "pixels without an area"),
        (Georeference(crs="EPSG:4326", transform=(1, 0, 5, 0, -1, 1e6)), "cannot be placed in EPSG:32632"),
        (Georeference(crs=MOON, transform=(1, 0, 5, 0, -1, 5)), "cannot be placed in EPSG:32632"),
    ],
)
def test_a_raster_without_a_place_on_the_map_is_refused(place, words):
    """The error names the raster, also if its coordinates are none of the map's system."""
    with pytest.raises(InputError, match=rf"a\.tif.* {words}"):
        MapGrid.of(raster()).box_of(raster(place))


def test_a_box_beside_the_map_is_an_error_of_its_own():
    """A mosaic tells a scene that the box misses from one that fails."""
    with pytest.raises(OutsideError, match="lies outside of the map"):
        MapGrid.of(raster()).part((0, 0, 1, 1), "EPSG:4326")
