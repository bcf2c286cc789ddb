"""Coordinate systems of what GDAL reads, beside those of GeoTIFFs."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import rasterio
import tifffile
from gdal_files import converted, mosaic, tiff
from pyproj import CRS as PROJ
from rasterio.crs import CRS
from rasterio.transform import Affine

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.text import same_system, shown_beside
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.stack.alignment import aligned
from vllm_mmout.geo.raster.writing import write_geotiff

pytestmark = pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")  # rasterio's own use
ARRAY = np.arange(20, dtype="uint8").reshape(1, 4, 5)
PLACE = Affine(30, 0, 440280, 0, -30, 3159720)


def vrt(path, crs, transform=PLACE):
    """A VRT with a coordinate system of its own over a GeoTIFF without one."""
    source = tiff(path.with_suffix(".none.tif"), ARRAY)
    numbers = ", ".join(map(repr, transform.to_gdal()))
    text = crs.to_wkt().replace('"', "&quot;")
    head = f'<SRS dataAxisToSRSAxisMapping="1,2">{text}</SRS><GeoTransform>{numbers}</GeoTransform>'
    return mosaic(path, [(source, 0, 0)], (4, 5), "Byte", head)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize(
    ("crs", "horizontal"),
    [("EPSG:32632+5773", "EPSG:32632"), ("EPSG:7405", "EPSG:27700"), ("EPSG:4326+5773", "EPSG:4326"),
     ("ESRI:102001+EPSG:5773", "ESRI:102001")],
)  # fmt: skip
def test_of_a_compound_system_the_horizontal_part_counts(tmp_path, crs, horizontal):
    """As in a GeoTIFF; a result of it can be written."""
    compound = CRS.from_wkt(PROJ.from_user_input(crs).to_wkt("WKT1_GDAL"))
    with open_raster(vrt(tmp_path / "a.vrt", compound)) as raster:
        place = raster.georeference
    assert PROJ.from_user_input(place.crs).equals(PROJ.from_user_input(horizontal), ignore_axis_order=True)
    if horizontal.startswith("EPSG"):
        assert place.crs == horizontal
    buffer = BytesIO()
    write_geotiff(buffer, ARRAY, georeference=place)
    with open_raster(buffer.getvalue()) as raster:
        assert same_system(raster.georeference.crs, place.crs)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize(
    "proj",
    [
        "+proj=tmerc +lat_0=0 +lon_0=9 +x_0=3500000 +ellps=bessel",
        "+proj=utm +zone=13 +ellps=clrk66",
        "+proj=tmerc +lat_0=0 +lon_0=9 +x_0=3500000 +ellps=bessel +towgs84=10,20,30",
    ],
)
def test_a_code_that_fits_but_for_the_datum_is_not_taken(tmp_path, proj):
    """Rasterio finds one that is some 100 m beside it."""
    crs = CRS.from_proj4(proj)
    assert crs.to_epsg() is not None
    with open_raster(vrt(tmp_path / "a.vrt", crs)) as raster:
        assert PROJ.from_user_input(raster.georeference.crs).equals(PROJ.from_wkt(crs.to_wkt()))


@pytest.mark.parametrize("proj", ["+proj=longlat +R=6371229", "+proj=longlat +a=6378137 +rf=298.3"])
def test_netcdf_on_a_sphere_or_ellipsoid_is_written_as_geotiff(tmp_path, proj):
    """What rasterio reads from the copy is what it reads from the NetCDF."""
    crs, place = CRS.from_proj4(proj), Affine(0.5, 0, 9, 0, -0.5, 50)
    path = converted(tiff(tmp_path / "a.tif", ARRAY, crs=crs, transform=place), tmp_path / "a.nc", "netCDF")
    with open_raster(path) as raster, (tmp_path / "copy.tif").open("wb") as file:
        write_geotiff(file, ARRAY, georeference=raster.georeference)
    with rasterio.open(path) as one, rasterio.open(tmp_path / "copy.tif") as other:
        systems = [PROJ.from_wkt(file.crs.to_wkt()) for file in (one, other)]
        assert one.transform == other.transform
    assert systems[0].equals(systems[1], ignore_axis_order=True)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_shift_of_a_known_datum_is_kept(tmp_path):
    """The code of the datum's system would lose it."""
    wkt = CRS.from_epsg(32632).to_wkt().removesuffix(',AUTHORITY["EPSG","32632"]]') + "]"
    wkt = wkt.replace(',AUTHORITY["EPSG","7030"]]', "],TOWGS84[10,20,30,0,0,0,0]", 1).replace(
        ',AUTHORITY["EPSG","6326"]', ""
    )
    assert CRS.from_wkt(wkt).to_epsg() == 32632
    with open_raster(vrt(tmp_path / "a.vrt", CRS.from_wkt(wkt))) as raster:
        assert "TOWGS84[10,20,30" in raster.georeference.crs


SYSTEMS = {
    "Lambert": "+proj=laea +lat_0=12 +lon_0=3 +datum=WGS84",
    "sinusoidal": "+proj=sinu +R=6371007.181 +units=m",
    "Albers of Canada": "ESRI:102001",
    "Mollweide": "ESRI:54009",
    "polar": "+proj=stere +lat_0=90 +lat_ts=71 +lon_0=-45 +datum=NAD83",
    "feet": "+proj=utm +zone=13 +datum=WGS84 +units=us-ft",
    "a zone of an ellipsoid": "+proj=utm +zone=13 +ellps=WGS84",
    "NAD27": "+proj=aea +lat_0=23 +lon_0=-96 +lat_1=29.5 +lat_2=45.5 +datum=NAD27",
    "a sphere": "+proj=longlat +R=6371229",
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_geotiff_and_its_vrt_lie_on_one_grid(tmp_path, name):
    """One file in the words of its keys, the other in those of GDAL."""
    transform = Affine(0.5, 0, 9, 0, -0.5, 50) if name == "a sphere" else PLACE
    crs = CRS.from_user_input(SYSTEMS[name])
    path = tiff(tmp_path / "a.tif", ARRAY, crs=crs, transform=transform)
    with open_raster(path) as one, open_raster(converted(path, tmp_path / "a.vrt", "VRT")) as other:
        assert one.georeference.crs is not None
        for pair in ((one, other), (other, one)):
            assert aligned(*pair).exact
    points = tiff(tmp_path / "points.tif", ARRAY, crs=crs, gcps=[rasterio.control.GroundControlPoint(*at, *at)
                                                                 for at in ((0, 0), (0, 5), (4, 0))])  # fmt: skip
    with open_raster(points) as one, open_raster(converted(points, tmp_path / "points.vrt", "VRT")) as other:
        assert one.georeference.gcps_crs is not None
        assert aligned(one, other).exact


def test_points_in_different_systems_are_told_apart(tmp_path):
    """Equal numbers lie elsewhere in another system."""
    points = [rasterio.control.GroundControlPoint(*at, *at) for at in ((0, 0), (0, 5), (4, 0))]
    paths = [tiff(tmp_path / f"{code}.tif", ARRAY, crs=f"EPSG:{code}", gcps=points) for code in (32632, 32633)]
    said = error_of(*paths)
    assert "have different georeferences" in said
    assert "EPSG:32632" in said
    assert "EPSG:32633" in said


def error_of(one, other):
    """What is said of two files that do not lie on one grid."""
    with open_raster(one) as first, open_raster(other) as second, pytest.raises(InputError) as caught:
        aligned(first, second)
    return str(caught.value)


def test_systems_that_differ_are_shown_where_they_do(tmp_path):
    """Two long texts that begin alike are not shown as equal ones."""
    paths = [
        tiff(tmp_path / f"{lon}.tif", ARRAY, crs=CRS.from_proj4(f"+proj=laea +lat_0=12 +lon_0={lon} +datum=WGS84"),
             transform=PLACE)
        for lon in (3, 4)
    ]  # fmt: skip
    said = error_of(*paths)
    assert "have no ground in common" in said
    assert 'PARAMETER["longitude_of_center",3' in said
    assert 'PARAMETER["longitude_of_center",4' in said
    assert said.count('PROJCS["unknown"') == 2


def test_one_system_in_two_ways_of_writing_it():
    """Is one; none is like none alone, and what PROJ does not know like nothing else."""
    assert same_system("EPSG:4326", CRS.from_epsg(4326).to_wkt())
    assert not same_system("EPSG:4326", "EPSG:32632")
    assert not same_system("EPSG:4326", "nonsense")
    assert not same_system("EPSG:4326", None)
    assert same_system(None, None)


BEGINNING = 'PROJCS["a name that is rather long, so that it fills what is shown",'


@pytest.mark.parametrize(("one", "other", "found"), [
    ("EPSG:4326", "EPSG:4326", "EPSG:4326"),
    ("EPSG:4326", "EPSG:32632", "EPSG:4326"),
    (f'{BEGINNING}UNIT["m",1]]', f'{BEGINNING}UNIT["m",2]]', f'{BEGINNING[:60]}...UNIT["m",1]]'),
    (f'{BEGINNING}UNIT["m",1]]', f'{BEGINNING}UNIT["m",1]]', BEGINNING[:60]),
])  # fmt: skip
def test_what_is_shown_of_a_system_beside_another(one, other, found):
    """The beginning, and the part of WKT in which they begin to differ."""
    assert shown_beside(one, other) == found


UNKNOWN = (1, 1, 0, 2, 1024, 0, 1, 1, 3072, 0, 1)


def test_keys_that_are_not_understood_are_compared(tmp_path):
    """Two such grids are one where their keys are the same, and refused where they are not, or one has none."""
    paths = {}
    for name, code in (("a", 30999), ("b", 30999), ("c", 30998), ("plain", None)):
        keys = [(34735, "H", 12, (*UNKNOWN, code), True)] if code else []
        place = [(33550, "d", 3, (30.0, 30.0, 0.0), True), (33922, "d", 6, (0.0, 0, 0, 440280, 3159720, 0), True)]
        paths[name] = tmp_path / f"{name}.tif"
        tifffile.imwrite(paths[name], ARRAY[0], metadata=None, extratags=[*keys, *place])
    with open_raster(paths["a"]) as one, open_raster(paths["b"]) as other:
        assert one.georeference.crs is None
        assert aligned(one, other).exact
    said = error_of(paths["a"], paths["c"])
    assert "have different coordinate systems" in said
    assert "not understood here (assign it, as with gdal_edit.py -a_srs)" in said
    assert "no coordinate system" in error_of(paths["a"], paths["plain"])
