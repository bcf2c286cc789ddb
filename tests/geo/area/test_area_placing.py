"""The place of an area of interest on a raster: its masks, its window, coordinate systems and the antimeridian."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

shapely = pytest.importorskip("shapely", reason="the areas are made by shapely")

from rasterio.features import geometry_mask  # noqa: E402 - after the skip
from rasterio.transform import Affine  # noqa: E402
from rasterio.warp import transform  # noqa: E402
from shapely.geometry import GeometryCollection, MultiPolygon, Polygon, box, mapping  # noqa: E402

from vllm_mmout.errors import InputError, OptionError  # noqa: E402
from vllm_mmout.geo import Georeference, Window, area_of, area_text, placed_area  # noqa: E402

SIZE = (150, 200)
UTM = Georeference("EPSG:32632", (10.0, 0.0, 500_000.0, 0.0, -10.0, 5_000_000.0))
SOUTH_UP = Georeference("EPSG:32632", (10.0, 0.0, 500_000.0, 0.0, 10.0, 4_998_500.0))
TURNED = Georeference("EPSG:32632", (9.0, 3.0, 500_000.0, 3.0, -9.0, 5_000_000.0))
COARSE = Georeference("EPSG:32632", (3000.0, 0.0, 250_000.0, 0.0, -3000.0, 5_600_000.0))


def placed(shape, georeference=UTM, size=SIZE, crs=None):
    return placed_area(area_of(area_text(shape, crs)), georeference, size, "x")


def whole(area, size=SIZE):
    return area.mask(Window(0, 0, *size))


def stars(seed):
    """Polygons around the raster of `UTM`, and one whose borders and hole run through the centres of pixels."""
    random = np.random.default_rng(seed)
    shapes = []
    for _ in range(4):
        angles = np.sort(random.uniform(0, 2 * np.pi, 60))
        radii = random.uniform(100, 1500) * random.uniform(0.3, 1, 60)
        x, y = 501_000 + random.uniform(-1000, 1000), 4_999_250 + random.uniform(-750, 750)
        shapes.append(Polygon(np.stack([x + radii * np.cos(angles), y + radii * np.sin(angles)], axis=1)))
    edge = box(500_505, 4_998_705, 501_005, 4_999_205).exterior.coords
    return [*shapes, Polygon(edge, [[(500_605, 4_999_105), (500_905, 4_999_105), (500_905, 4_998_805)]])]


@pytest.mark.parametrize("georeference", [UTM, SOUTH_UP, TURNED], ids=["north up", "south up", "turned"])
@pytest.mark.parametrize("seed", range(3))
def test_masks_are_those_of_rasterio(georeference, seed):
    """Every pixel of every window equals rasterio's mask of the whole, also where a border runs through its centre."""
    shapes = stars(seed)
    area = placed(GeometryCollection(shapes), georeference)
    expected = ~geometry_mask(map(mapping, shapes), SIZE, Affine(*georeference.transform))
    np.testing.assert_array_equal(whole(area), expected)
    random = np.random.default_rng(seed)
    for _ in range(20):
        row, col = random.integers(0, SIZE[0] - 1), random.integers(0, SIZE[1] - 1)
        window = Window(int(row), int(col), *(int(random.integers(1, 60)) for _ in range(2)))
        part = expected[window.rows, window.cols]
        np.testing.assert_array_equal(area.mask(window)[: part.shape[0], : part.shape[1]], part)
    inner = area.within(Window(20, 30, 100, 110))
    np.testing.assert_array_equal(inner.mask(Window(5, 6, 50, 60)), expected[25:75, 36:96])
    points = random.uniform(-30, 230, (500, 2))
    np.testing.assert_array_equal(
        area.contains(points),
        [0 <= x < SIZE[1] and 0 <= y < SIZE[0] and expected[int(y), int(x)] for x, y in points],
    )


def test_the_window_holds_every_touched_pixel():
    """It is the smallest one around the pixels that rasterio finds touched."""
    for seed in range(5):
        shape = stars(seed)[0].intersection(box(500_003, 4_998_503, 501_997, 4_999_997))
        if shape.is_empty:
            continue
        touched = ~geometry_mask([mapping(shape)], SIZE, Affine(*UTM.transform), all_touched=True)
        rows, cols = np.nonzero(touched)
        window = placed(shape).window
        assert (window.row, window.col) == (rows.min(), cols.min())
        assert (window.row + window.height - 1, window.col + window.width - 1) == (rows.max(), cols.max())


def dense(polygon, crs, georeference, points=4000):
    """Return a polygon in pixels, by transforming very many points of each of its edges."""
    corners = np.array(polygon.exterior.coords)
    shares = np.linspace(0, 1, points, endpoint=False)[:, np.newaxis]
    edges = np.concatenate([a + shares * (b - a) for a, b in pairwise(corners)])
    x, y = transform(crs, georeference.crs, *edges.T)
    a, _, c, _, e, f = georeference.transform
    return Polygon(np.stack([(np.array(x) - c) / a, (np.array(y) - f) / e], axis=1)).buffer(0)


@pytest.mark.parametrize(
    ("shape", "crs"),
    [
        (box(5, 47, 13, 50), "EPSG:4326"),
        (Polygon([(4, 46.5), (14, 47), (9, 51)]), "EPSG:4326"),
        (box(-20, 40, 40, 48.5), "EPSG:4326"),
        (box(4_000_000, 2_700_000, 4_400_000, 3_000_000), "EPSG:3035"),
    ],
    ids=["box", "triangle", "beyond the zone", "Europe"],
)
def test_edges_stay_straight_in_their_own_system(shape, crs):
    """A long edge in degrees is curved in UTM: pixels differ from a dense transformation by less than half of one."""
    size = (180, 190)
    mask = whole(placed(shape, COARSE, size, crs), size)
    expected = dense(shape.intersection(box(2, 42, 16, 55)) if crs == "EPSG:4326" else shape, crs, COARSE)
    inner, outer = (~geometry_mask([mapping(expected.buffer(by))], size, Affine.identity()) for by in (-0.05, 0.05))
    assert not (inner & ~mask).any()
    assert not (mask & ~outer).any()
    plain = ~geometry_mask([mapping(dense(shape, crs, COARSE, 1))], size, Affine.identity())
    assert (plain != mask).any()  # the corners alone are not enough


@pytest.mark.parametrize(
    "shape",
    [
        MultiPolygon([box(178.5, -18, 180, -16), box(-180, -18, -179, -16)]),
        Polygon([(178.5, -18), (-179, -18), (-179, -16), (178.5, -16)]),
        box(178.5, -18, 181, -16),
        box(-181.5, -18, -179, -16),
    ],
    ids=["split", "crossing", "beyond 180", "beyond -180"],
)
@pytest.mark.parametrize(
    "georeference",
    [
        Georeference("EPSG:32701", (5000.0, 0.0, 0.0, 0.0, -5000.0, 8_300_000.0)),
        Georeference("EPSG:4326", (0.05, 0.0, 177.0, 0.0, -0.05, -14.0)),
        Georeference("EPSG:3832", (6000.0, 0.0, 3_000_000.0, 0.0, -6000.0, -1_600_000.0)),
    ],
    ids=["UTM", "degrees", "Pacific"],
)
def test_an_area_may_cross_the_antimeridian(shape, georeference):
    """Split as in RFC 7946, crossing by a jump of the longitude, or with longitudes beyond 180: all mean the same."""
    size = (100, 110)
    area = placed(shape, georeference, size, "EPSG:4326")
    cols, rows = np.meshgrid(np.arange(size[1]) + 0.5, np.arange(size[0]) + 0.5)
    a, _, c, _, e, f = georeference.transform
    x, y = c + a * cols.ravel(), f + e * rows.ravel()
    longitudes, latitudes = map(np.array, transform(georeference.crs, "EPSG:4326", x, y))
    longitudes = longitudes % 360
    expected = (longitudes > 178.5) & (longitudes < 181) & (latitudes > -18) & (latitudes < -16)
    assert expected.sum() > 300
    assert (whole(area, size) != expected.reshape(size)).sum() <= 3
    assert bool(area.assumed) == (shape.bounds[2] - shape.bounds[0] > 180 and shape.geom_type == "Polygon")


def test_a_world_map_is_no_crossing():
    """An edge from -180 to 180 is one of a map of the world, on maps from -180 and from 0."""
    for west in (-180.0, 0.0):
        georeference = Georeference("EPSG:4326", (2.0, 0.0, west, 0.0, -2.0, 90.0))
        area = placed(box(-180, 0, 180, 90), georeference, (90, 180), "EPSG:4326")
        mask = whole(area, (90, 180))
        assert mask[:45].all()
        assert not mask[45:].any()
        assert area.assumed == ()
    polar = Georeference("EPSG:3995", (50_000.0, 0.0, -2_500_000.0, 0.0, -50_000.0, 2_500_000.0))
    mask = whole(placed(box(-180, 80, 180, 90), polar, (100, 100), "EPSG:4326"), (100, 100))
    x, y = np.meshgrid(np.arange(-2_475_000, 2_500_000, 50_000), np.arange(2_475_000, -2_500_000, -50_000))
    latitudes = np.array(transform("EPSG:3995", "EPSG:4326", x.ravel(), y.ravel())[1]).reshape(100, 100)
    np.testing.assert_array_equal(mask[np.abs(latitudes - 80) > 0.01], (latitudes > 80)[np.abs(latitudes - 80) > 0.01])


def test_a_ring_around_a_pole_is_refused():
    """It crosses the antimeridian once, so its inside is not known."""
    ring = Polygon([(0, 80), (120, 80), (-120, 80)])
    with pytest.raises(InputError, match="a ring around a pole; split it"):
        placed(ring, COARSE, (10, 10), "EPSG:4326")


def test_overlapping_parts_are_one_area():
    """Parts of a MultiPolygon that overlap, which is invalid, do not become a hole."""
    shape = MultiPolygon([box(500_100, 4_999_000, 500_600, 4_999_900), box(500_300, 4_999_300, 500_900, 4_999_600)])
    expected = ~geometry_mask(map(mapping, shape.geoms), SIZE, Affine(*UTM.transform))
    np.testing.assert_array_equal(whole(placed(shape)), expected)


def test_a_feature_has_its_own_mask():
    """Features that overlap each have their pixels, and the area has those of all."""
    shapes = stars(1)[:2]
    features = [
        {"type": "Feature", "properties": {"name": name}, "geometry": mapping(shape)}
        for name, shape in zip("ab", shapes, strict=True)
    ]
    area = placed({"type": "FeatureCollection", "features": features, "crs": None})
    masks = [area.mask(Window(0, 0, *SIZE), feature) for feature in range(2)]
    for mask, shape in zip(masks, shapes, strict=True):
        np.testing.assert_array_equal(mask, ~geometry_mask([mapping(shape)], SIZE, Affine(*UTM.transform)))
    np.testing.assert_array_equal(whole(area), masks[0] | masks[1])


@pytest.mark.parametrize(
    ("shape", "crs", "message"),
    [
        (box(0, 0, 1, 1), None, r"aoi with the extent \(0, 0, 1, 1\) lies outside of x, which covers \(500000, "),
        (box(0, 0, 1, 1), "EPSG:4326", r"in EPSG:4326 lies outside of x, which covers \(9, 45\.1"),
        (box(500_001, 4_999_001, 500_004, 4_999_004), None, "covers the centre of no pixel of x"),
    ],
)
def test_an_area_without_a_pixel_is_an_error(shape, crs, message):
    """The error has the extents of both."""
    with pytest.raises(InputError, match=message) as caught:
        placed(shape, UTM, SIZE, crs)
    assert caught.value.param == "aoi"


@pytest.mark.parametrize(
    ("georeference", "message"),
    [
        (None, "x has no georeference, so an aoi cannot be found in it"),
        (Georeference("EPSG:32632"), "no transform, so an aoi cannot"),
        (Georeference(transform=UTM.transform), "no coordinate system, so an aoi in EPSG:4326 cannot"),
    ],
)
def test_a_raster_that_is_nowhere_is_refused(georeference, message):
    """The error says what the raster lacks."""
    with pytest.raises(InputError, match=message):
        placed(box(9, 45.1, 9.1, 45.2), georeference, SIZE, "EPSG:4326")


def test_a_system_that_cannot_be_reached_is_refused():
    """Another celestial body has no way to the raster."""
    with pytest.raises((InputError, OptionError), match=r"cannot transform|must name"):
        placed(box(9, 45.1, 9.1, 45.2), UTM, SIZE, "IAU_2015:30100")


def test_far_borders_cost_little():
    """Of a border of many positions, a window gets only those near it."""
    angles = np.linspace(0, 2 * np.pi, 20_000)
    shape = Polygon(np.stack([501_000 + 5e4 * np.cos(angles), 4_999_000 + 5e4 * np.sin(angles)], axis=1))
    area = placed(shape)
    near = area.polygons[0][0].near(Window(0, 0, 50, 50), 1)
    assert len(near["coordinates"][0]) < 20
    assert whole(area).all()
