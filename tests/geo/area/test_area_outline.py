"""The outline of an area of interest: a rectangle, or one on each side of a gap of longitudes."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import InputError, OutsideError
from vllm_mmout.geo import Georeference, Window, area_of, area_text, window_around
from vllm_mmout.geo.area.outline import outline


def corners(west, east):
    return [[[west, 1], [east, 1], [east, 2], [west, 2], [west, 1]]]


def area(*rectangles, crs=None):
    return area_of(area_text({"type": "MultiPolygon", "coordinates": [corners(*each) for each in rectangles]}, crs))


@pytest.mark.parametrize(
    ("rectangles", "sides"),
    [
        ([(8, 12)], [(8, 12)]),
        ([(8, 9), (8.5, 12)], [(8, 12)]),
        ([(8, 9), (11, 12)], [(8, 9), (11, 12)]),
        ([(179, -178)], [(-180, -178), (179, 180)]),
        ([(179, 182)], [(-180, -178), (179, 180)]),
        ([(-181, -178)], [(-180, -178), (179, 180)]),
        ([(179, 180), (-180, -178)], [(-180, -178), (179, 180)]),
        ([(190, 200)], [(-170, -160)]),
        ([(-180, 180)], [(-180, 180)]),
    ],
    ids=str,
)
def test_an_outline_has_no_more_than_two_rectangles(rectangles, sides):
    """Its longitudes are from -180 to 180, however the area is written at the antimeridian."""
    boxes = [
        (polygon[0][:, 0].min(), polygon[0][:, 0].max()) for polygon in outline(area(*rectangles)).features[0].polygons
    ]
    assert boxes == sides


def test_an_outline_in_metres_is_the_extent():
    """Numbers that are no longitudes are not turned."""
    (polygon,) = outline(area((170, 600), (900, 1000), crs="EPSG:32632")).features[0].polygons
    assert (polygon[0][:, 0].min(), polygon[0][:, 0].max()) == (170, 1000)


def test_the_window_around_an_area_has_all_touched_pixels():
    """On a raster from 179 to 189 degrees; an area beside it lies outside, and one around a pole is refused."""
    place, size = Georeference("EPSG:4326", (1, 0, 179, 0, -1, 5)), (10, 10)
    assert window_around(area((179.5, -177.5)), place, size, "x") == Window(3, 0, 1, 4)
    with pytest.raises(OutsideError, match=r"aoi with the extent \(8, 1, 9, 2\) in EPSG:4326 lies outside of x"):
        window_around(area((8, 9)), place, size, "x")
    pole = {"type": "Polygon", "coordinates": [[[0, 80], [120, 80], [-120, 80], [0, 80]]]}
    with pytest.raises(InputError, match="around a pole"):
        window_around(area_of(area_text(pole)), place, size, "x")
