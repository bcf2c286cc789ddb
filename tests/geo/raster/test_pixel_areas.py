"""Areas of pixels on the ground, with pyproj (PROJ) as the judge."""

from __future__ import annotations

import numpy as np
import pyproj
import pytest
from pyproj.database import query_crs_info

from vllm_mmout.geo.raster.areas import pixel_areas
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.ground_points import GroundControlPoint

UTM = """PROJCS["mine",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],PRIMEM["Greenwich",0],
UNIT["degree",0.0174532925199433]],PROJECTION["Transverse_Mercator"],PARAMETER["latitude_of_origin",0],
PARAMETER["central_meridian",9],PARAMETER["scale_factor",0.9996],PARAMETER["false_easting",500000],
PARAMETER["false_northing",0],UNIT["foot",0.3048]]"""


def place(crs, transform=(30.0, 0.0, 5e5, 0.0, -20.0, 4e6)):
    """A georeference."""
    return Georeference(crs=crs, transform=transform)


def test_every_projected_system_has_its_unit():
    """Of the codes that PROJ knows, none has another unit."""
    systems = list(query_crs_info(auth_name="EPSG", pj_types="PROJECTED_CRS"))[::23]
    areas = {system.code: pixel_areas(place(f"EPSG:{system.code}"), 1) for system in systems}
    known = {code: area for code, area in areas.items() if area is not None}  # rasterio's PROJ may be older
    assert len(known) > 200
    for code, area in known.items():
        unit = pyproj.CRS.from_epsg(code).axis_info[0].unit_conversion_factor
        assert area == pytest.approx(600 * unit**2, rel=1e-9)


@pytest.mark.parametrize("code", [4326, 4258, 4269, 4807, 4901, 4902, 4821, 4275])
def test_geographic_systems_in_grads_are_told_apart(code):
    """Those whose unit is the degree are taken, others not."""
    degrees = pyproj.CRS.from_epsg(code).axis_info[0].unit_name == "degree"
    assert (pixel_areas(place(f"EPSG:{code}", (0.1, 0.0, 2.0, 0.0, -0.1, 50.0)), 3) is None) != degrees


@pytest.mark.parametrize(
    ("crs", "unit"), [("EPSG:32614", 1.0), ("EPSG:2222", 0.3048), ("EPSG:2225", 1200 / 3937), (UTM, 0.3048)]
)
@pytest.mark.parametrize("transform", [(30.0, 0.0, 5e5, 0.0, -20.0, 4e6), (9.0, 2.0, 5e5, 2.0, 7.0, 4e6)])
def test_on_a_map_a_pixel_has_the_area_of_its_parallelogram(crs, unit, transform):
    """In square metres, whatever the unit of the map, rotated too."""
    a, b, _, d, e, _ = transform
    expected = abs(a * e - b * d) * unit**2
    np.testing.assert_allclose(pixel_areas(place(crs, transform), 4), np.full(4, expected), rtol=1e-12)


@pytest.mark.parametrize("top", [90.0, 48.0, 0.3, -60.0])
@pytest.mark.parametrize("step", [-0.25, -1 / 3600])
def test_between_parallels_a_pixel_has_the_area_of_its_cell(top, step):
    """Within a millionth of what PROJ gives for its polygon, whose own error is below a square centimetre or so."""
    areas = pixel_areas(place("EPSG:4326", (0.25, 0.0, 7.0, 0.0, step, top)), 3)
    geod = pyproj.Geod(ellps="WGS84")
    for row, area in enumerate(areas):
        north, south = top + row * step, top + (row + 1) * step
        along = np.linspace(7.0, 7.25, 500)
        lons, lats = np.append(along, along[::-1]), np.repeat([north, south], 500)
        assert area == pytest.approx(abs(geod.polygon_area_perimeter(lons, lats)[0]), rel=1e-6, abs=1e-4)


def test_the_whole_earth():
    """All cells together have the area of the ellipsoid; south up as well; what lies beyond a pole has none."""
    expected = 510065621724088.44  # WGS 84 (NGA.STND.0036, derived constants)
    for transform in ((0.5, 0.0, -180.0, 0.0, -0.5, 90.0), (0.5, 0.0, -180.0, 0.0, 0.5, -90.0)):
        areas = pixel_areas(place("EPSG:4326", transform), 360)
        assert areas.sum() * 720 == pytest.approx(expected, rel=1e-12)
    assert pixel_areas(place("EPSG:4326", (1.0, 0.0, 0.0, 0.0, -1.0, 91.0)), 2)[0] == 0


def test_small_cells_have_all_digits():
    """A cell cut into ten thousand rows has the area of its rows together, at a pole too."""
    for top in (90.0, 10.0):
        whole = pixel_areas(place("EPSG:4326", (1.0, 0.0, 0.0, 0.0, -0.01, top)), 1)
        parts = pixel_areas(place("EPSG:4326", (1.0, 0.0, 0.0, 0.0, -1e-6, top)), 10_000)
        assert parts.sum() == pytest.approx(whole[0], rel=1e-9)
        assert (np.diff(parts)[::1000] > 0).all()


@pytest.mark.parametrize(
    "georeference",
    [
        None,
        Georeference(crs="EPSG:32614"),
        Georeference(transform=(1.0, 0.0, 0.0, 0.0, -1.0, 0.0)),
        Georeference(gcps=(GroundControlPoint(0, 0, 1, 2),), gcps_crs="EPSG:32614"),
        place("EPSG:4326", (0.1, 0.01, 5.0, 0.01, -0.1, 50.0)),
        place("EPSG:4978"),
        place("EPSG:5773"),
        place("EPSG:999999"),
        place('LOCAL_CS["a hall",UNIT["metre",1]]'),
        place("nonsense"),
    ],
    ids=repr,
)
def test_where_areas_cannot_be_told_there_are_none(georeference):
    """No place, no system, rows across parallels, or a system that is neither a map nor latitude and longitude."""
    assert pixel_areas(georeference, 5) is None
