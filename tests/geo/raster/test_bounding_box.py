"""Bounding boxes at the edges of maps and of the Earth, and boxes that are in no raster."""

from __future__ import annotations

import numpy as np
import pytest
from pyproj import CRS, Transformer
from rasterio.rpc import RPC

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo.raster.bounding_box import window_of_box
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.ground_points import GroundControlPoint
from vllm_mmout.geo.raster.pixel_grid import PixelGrid
from vllm_mmout.geo.raster.raster import Window

WORLD = (180, 360)
FROM_0 = Georeference("EPSG:4326", (1, 0, 0, 0, -1, 90))
FROM_180 = Georeference("EPSG:4326", (1, 0, -180, 0, -1, 90))
UTM = Georeference("EPSG:32632", (10, 0, 5e5, 0, -10, 5e6))
RPCS = RPC(*[1.0] * 4, *[[1.0] * 20] * 2, *[1.0] * 4, *[[1.0] * 20] * 2, 1.0, 1.0)
ANTARCTIC = Georeference("EPSG:3031", (1000, 0, -3e6, 0, -1000, 3e6))


@pytest.mark.parametrize("crs", [None, "EPSG:4326", "EPSG:4258"])
@pytest.mark.parametrize(
    ("place", "box", "window"),
    [
        (FROM_0, (-170, 0, -160, 10), Window(80, 190, 10, 10)),
        (FROM_0, (190, 0, 200, 10), Window(80, 190, 10, 10)),
        (FROM_0, (170, 0, -170, 10), Window(80, 170, 10, 20)),
        (FROM_0, (-180, -90, 180, 90), Window(0, 0, 180, 360)),
        (FROM_0, (-0.5, 0.2, -0.4, 0.3), Window(89, 359, 1, 1)),
        (FROM_180, (-170, 0, -160, 10), Window(80, 10, 10, 10)),
        (FROM_180, (190, 0, 200, 10), Window(80, 10, 10, 10)),
        (FROM_180, (-10, 0, 10, 10), Window(80, 170, 10, 20)),
        (FROM_180, (0, -90, 360, 90), Window(0, 0, 180, 360)),
        (FROM_180, (179.2, -90, 180, -89.5), Window(179, 359, 1, 1)),
    ],
)
def test_longitudes_may_be_counted_from_anywhere(place, box, window, crs) -> None:
    """A box in -180 to 180 is found in a raster of 0 to 360, and the other way round; without a shift where none is."""
    assert window_of_box(box, crs, place, WORLD, "world.tif") == window


@pytest.mark.parametrize(("place", "box"), [(FROM_0, (-10, 0, 10, 10)), (FROM_180, (170, 0, -170, 10))])
def test_a_box_at_both_ends_of_a_raster_is_two(place, box) -> None:
    """What lies at the left and at the right edge is no window: the error names both parts."""
    with pytest.raises(InputError, match=r"two ends of world\.tif, .*columns 0 to 9\) and .*columns 350 to 359\)"):
        window_of_box(box, None, place, WORLD, "world.tif")


def test_a_map_that_ends_at_the_antimeridian_has_one_side_of_a_box() -> None:
    """Of a box that crosses it a map in Mercator's projection has what lies on the map's side."""
    east = Georeference("EPSG:3857", (1e4, 0, 20037508.342789244 - 1e6, 0, -1e4, 5e5))
    west = Georeference("EPSG:3857", (1e4, 0, -20037508.342789244, 0, -1e4, 5e5))
    width = int(20037508.342789244 / 180 * 5 / 1e4) + 1  # pixels of 5 degrees
    for box in ((175, -1, -175, 1), (175, -1, 185, 1), (-185, -1, -175, 1)):
        found = window_of_box(box, "EPSG:4326", east, (100, 100), "x")
        assert (found.col, found.width) == (100 - width, width)
        found = window_of_box(box, "EPSG:4326", west, (100, 100), "x")
        assert (found.col, found.width) == (0, width)


def test_a_box_in_metres_across_the_antimeridian() -> None:
    """In a raster of longitudes from 0 to 360 it is one part, in one from -180 to 180 two."""
    there = Transformer.from_crs("EPSG:4326", "EPSG:32601", always_xy=True)
    (west, east), (south, north) = there.transform([178.5, -178.5], [10.2, 10.7])
    box = (west, min(south, north), east, max(south, north))
    assert window_of_box(box, "EPSG:32601", FROM_0, WORLD, "x") == Window(79, 178, 1, 4)
    with pytest.raises(InputError, match="two ends"):
        window_of_box(box, "EPSG:32601", FROM_180, WORLD, "x")


def places_within(box, transformer) -> np.ndarray:
    """Columns and rows in a raster of pixels that are places of a box, [2, places]."""
    lon, lat = np.meshgrid(np.linspace(box[0], box[2], 101), np.linspace(box[1], box[3], 101))
    return np.stack(transformer.transform(lon.ravel(), lat.ravel()))


@pytest.mark.parametrize("crs", ["EPSG:32601", "EPSG:32660"])
@pytest.mark.parametrize("box", [(179.2, 61, -179.1, 62), (-179.9, 61, -179.5, 62), (179.5, 61, 180, 62),
                                 (180.5, 61, 181, 62)], ids=str)  # fmt: skip
def test_utm_on_either_side_of_the_antimeridian(crs, box) -> None:
    """A box that crosses it, or lies beyond it as the zone sees it, is where pyproj puts its places."""
    there = Transformer.from_crs("EPSG:4326", crs, always_xy=True)
    middle_x, middle_y = there.transform(180, 61.5)
    place = Georeference(crs, (100, 0, round(middle_x) - 100_000, 0, -100, round(middle_y) + 100_000))
    window = window_of_box(box, "EPSG:4326", place, (2000, 2000), "x")
    x, y = places_within((box[0], box[1], box[2] + 360 * (box[2] < box[0]), box[3]), there)
    cols, rows = (x - place.transform[2]) / 100, (place.transform[5] - y) / 100
    assert (window.col, window.row) == (int(cols.min()), int(rows.min()))
    assert (window.col + window.width, window.row + window.height) == (int(cols.max()) + 1, int(rows.max()) + 1)


@pytest.mark.parametrize("place", [UTM, ANTARCTIC, FROM_0, Georeference("EPSG:3857", (1e4, 0, 1e6, 0, -1e4, 6e6))])
def test_the_whole_world_is_the_whole_raster(place) -> None:
    """A projection is not asked for what it cannot show."""
    assert window_of_box((-180, -90, 180, 90), "EPSG:4326", place, (100, 120), "x") == Window(0, 0, 100, 120)


def test_a_cap_around_the_pole_is_a_circle() -> None:
    """All longitudes south of a parallel: the window around a circle; of the pole's own map on longitudes a stripe."""
    radius = Transformer.from_crs("EPSG:4326", "EPSG:3031", always_xy=True).transform(0, -80)[1]
    first, end = int(3000 - radius / 1000), int(3000 + radius / 1000) + 1
    found = window_of_box((-180, -90, 180, -80), "EPSG:4326", ANTARCTIC, (6000, 6000), "x")
    assert found == Window(first, first, end - first, end - first)
    assert window_of_box((-1e5, -1e5, 1e5, 1e5), "EPSG:3031", FROM_180, WORLD, "x") == Window(178, 0, 2, 360)


def test_long_curved_edges_are_followed_to_the_pixel() -> None:
    """Across Europe an edge bends by hundreds of kilometres: none of it is cut off, at ten metres a pixel."""
    europe = Georeference("EPSG:3035", (10, 0, 0, 0, -10, 1e7))
    found = window_of_box((-8, 38, 33, 62), "EPSG:4326", europe, (1_000_000, 1_000_000), "x")
    along = np.linspace(0, 1, 200_001)
    lon, lat = -8 + 41 * along, 38 + 24 * along
    edges = [(lon, np.full_like(along, 38)), (lon, np.full_like(along, 62)), (np.full_like(along, -8), lat),
             (np.full_like(along, 33), lat)]  # fmt: skip
    there = Transformer.from_crs("EPSG:4326", "EPSG:3035", always_xy=True)
    x, y = np.concatenate([there.transform(*edge) for edge in edges], axis=1)
    cols, rows = x / 10, (1e7 - y) / 10
    assert (found.col, found.row) == (int(cols.min()), int(rows.min()))
    assert (found.col + found.width, found.row + found.height) == (int(cols.max()) + 1, int(rows.max()) + 1)


def test_what_an_edge_still_lacks_is_allowed_for() -> None:
    """A curved border lies beyond all points of it that are asked for: it counts as far as it may reach."""
    angles = (np.arange(65) + 0.5) * 2 * np.pi / 64
    circle = 25 + 20.00005 * np.cos(angles), 25 + 20.00005 * np.sin(angles)
    grid = PixelGrid((1.0, 0.0, 0.0, 0.0, 1.0, 0.0), (50, 50))
    assert grid.window(circle, 16) == Window(4, 4, 42, 42)
    assert grid.window(circle) == Window(5, 5, 40, 40)


def test_a_system_may_be_given_as_wkt() -> None:
    """What pyproj knows is a system: WKT and PROJ strings, of the box and of the raster."""
    wanted = window_of_box((9.01, 45.1, 9.1, 45.14), "EPSG:4326", UTM, (1000, 1200), "x")
    odd = Georeference(CRS("+proj=utm +zone=32 +datum=WGS84").to_wkt(), UTM.transform)
    assert not odd.crs.startswith("EPSG")
    for crs, place in (("+proj=longlat +datum=WGS84", UTM), (CRS.from_epsg(4326).to_wkt(), UTM), ("EPSG:4326", odd)):
        assert window_of_box((9.01, 45.1, 9.1, 45.14), crs, place, (1000, 1200), "x") == wanted


def test_what_is_outside_is_said_in_the_boxs_system() -> None:
    """Both extents stand in the error, in coordinates that can be compared."""
    with pytest.raises(
        InputError, match=r"bbox \(1, 2, 3, 4\) lies outside of x, which covers \(500000, 4990000, 5120"
    ):
        window_of_box((1, 2, 3, 4), None, UTM, (1000, 1200), "x")
    with pytest.raises(InputError, match=r'for longitudes and latitudes set bbox_crs="EPSG:4326"$'):
        window_of_box((9.01, 45.1, 9.1, 45.14), None, UTM, (1000, 1200), "x")
    with pytest.raises(InputError, match=r"covers \([\d, ]+\) there$"):  # no longitudes
        window_of_box((1000, 45, 1001, 46), None, UTM, (1000, 1200), "x")
    with pytest.raises(
        InputError, match=r"bbox \(1, 2, 3, 4\) in EPSG:4326 lies outside of x, which covers \(9, 45\.06"
    ):
        window_of_box((1, 2, 3, 4), "EPSG:4326", UTM, (1000, 1200), "x")
    with pytest.raises(InputError, match="outside"):  # touches the edge, and no pixel
        window_of_box((512000, 4990000, 513000, 5000000), None, UTM, (1000, 1200), "x")
    turned = Georeference("EPSG:32632", (1, 1, 0, 1, -1, 0))
    with pytest.raises(InputError, match="outside"):  # within the extent of a turned raster, beside its pixels
        window_of_box((0, 8, 1, 9), None, turned, (10, 10), "x")


def test_a_box_may_be_smaller_than_a_pixel_or_reach_beyond_the_raster() -> None:
    """It is the pixel that it lies in; and only what the raster has."""
    assert window_of_box((500011, 4999983, 500012, 4999984), None, UTM, (1000, 1200), "x") == Window(1, 1, 1, 1)
    assert window_of_box((500011, 4999983, 500011 + 1e-9, 4999983 + 1e-9), None, UTM, (9, 9), "x") == Window(1, 1, 1, 1)
    assert window_of_box((0, 4999000, 500020, 9e9), None, UTM, (1000, 1200), "x") == Window(0, 0, 100, 2)


NOWHERE = {
    "no georeference": (None, "has no georeference"),
    "ground control points": (
        Georeference(gcps=(GroundControlPoint(0, 0, 1, 2),), gcps_crs="EPSG:4326"),
        "has ground control points but no transform, .*; warp it first",
    ),
    "RPCs": (Georeference(rpcs=RPCS), "has RPCs but no transform"),
    "a system alone": (Georeference("EPSG:4326"), "has a coordinate system but no transform"),
    "no area": (Georeference("EPSG:4326", (1, 1, 0, 1, 1, 0)), "has pixels without an area"),
}


@pytest.mark.parametrize("case", NOWHERE)
def test_without_a_transform_there_is_no_box(case) -> None:
    """The error says what the raster has instead, and that a window of pixels can be given."""
    place, words = NOWHERE[case]
    with pytest.raises(InputError, match=rf"scene\.tif {words}.*use window=\(row, col"):
        window_of_box((0, 0, 1, 1), None, place, (10, 10), "scene.tif")


def test_a_raster_without_a_system_has_boxes_of_its_own_alone() -> None:
    """Its own coordinates need no system; any other has nothing to start from."""
    place = Georeference(transform=(1.0, 0.0, 0.0, 0.0, -1.0, 10.0))
    assert window_of_box((2, 3, 4, 5), None, place, (10, 10), "x") == Window(5, 2, 2, 2)
    with pytest.raises(InputError, match="x has no coordinate system, so a bbox in EPSG:4326 cannot be found"):
        window_of_box((2, 3, 4, 5), "EPSG:4326", place, (10, 10), "x")


def test_wrong_systems_and_sides_are_errors_of_the_option() -> None:
    """An unknown system, west above east where x is no longitude, and a box that a projection cannot show."""
    with pytest.raises(OptionError, match="bbox_crs must be a coordinate system, as"):
        window_of_box((2, 3, 4, 5), "EPSG:1", UTM, (10, 10), "x")
    with pytest.raises(OptionError, match="west below its east where x is not a longitude"):
        window_of_box((5, 3, 4, 5), None, UTM, (10, 10), "x")
    seen_from_space = Georeference("+proj=geos +h=35785831 +lon_0=0", (5e4, 0, -5e6, 0, -5e4, 5e6))
    _, north = Transformer.from_crs("EPSG:4326", seen_from_space.crs, always_xy=True).transform(0, 5)
    found = window_of_box((-5, -5, 5, 5), "EPSG:4326", seen_from_space, (200, 200), "x")
    assert found.height == 2 * (int(north / 5e4) + 1)
    with pytest.raises(InputError, match="cannot show all of bbox"):
        window_of_box((-120, -5, 5, 5), "EPSG:4326", seen_from_space, (200, 200), "x")


@pytest.mark.parametrize("place", [FROM_0, FROM_180])
@pytest.mark.parametrize("reach", [1e5, 1e12, 1e300, 1.7e308])
@pytest.mark.parametrize("crs", [None, "EPSG:4258"])
def test_a_box_of_many_turns_is_the_whole_earth(place, reach, crs) -> None:
    """It is found at once, however many turns it has."""
    assert window_of_box((-reach, 0, reach, 10), crs, place, WORLD, "x") == Window(80, 0, 10, 360)


@pytest.mark.parametrize("reach", [1e9, 1e18, 1e300, 1.7e308])
def test_a_box_that_ends_far_away_has_the_whole_raster(reach) -> None:
    """Its ends have too few digits for pixels, or overflow in them: all of the raster is in it."""
    assert window_of_box((-reach, -reach, reach, reach), None, UTM, (100, 120), "x") == Window(0, 0, 100, 120)


def test_metres_that_are_called_degrees() -> None:
    """A raster that is millions of turns wide has no longitudes to shift; a box in its own numbers is found."""
    wrong = Georeference("EPSG:4326", (1e9, 0, 0, 0, -1, 90))
    assert window_of_box((2e9, 0, 3e9, 10), None, wrong, WORLD, "x") == Window(80, 2, 10, 1)


def test_a_system_that_is_nowhere_on_earth() -> None:
    """PROJ knows a local system but no way to it: an error of the input that says what to do."""
    local = Georeference('LOCAL_CS["x"]', (1, 0, 0, 0, -1, 0))
    with pytest.raises(InputError, match=r"cannot transform EPSG:4326 .* leave bbox_crs out"):
        window_of_box((10, -20, 20, -10), "EPSG:4326", local, (100, 100), "x")


@pytest.mark.parametrize("crs", ["EPSG:5773", "EPSG:4978"], ids=["heights", "geocentric"])
def test_a_system_without_a_map_is_refused(crs) -> None:
    """Heights, and metres from the middle of the Earth, say nothing of west and south."""
    with pytest.raises(OptionError, match=rf"must be a geographic or projected system .*, got '{crs}'"):
        window_of_box((9.01, 45.1, 9.1, 45.14), crs, UTM, (1000, 1200), "x")
