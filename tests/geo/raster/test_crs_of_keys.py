"""Coordinate systems that a GeoTIFF spells out in keys, with rasterio and pyproj as the judges of where points lie."""

from __future__ import annotations

import math
from io import BytesIO

import numpy as np
import pytest
import tifffile
from geotiffs_by_rasterio import geotiff
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError, ProjError
from rasterio import crs as gdal
from rasterio.io import MemoryFile
from rasterio.transform import Affine

from vllm_mmout.geo.raster.areas import pixel_areas
from vllm_mmout.geo.raster.bounding_box import window_of_box
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.opened import read_raster
from vllm_mmout.geo.raster.tags import GeoTag

PLACE = (30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0)
PIXELS = np.zeros((1, 4, 5), "uint8")
UTM_13 = {1024: 1, 1025: 1, 2048: 4326, 3072: 32767, 3074: 16013}
BESSEL = {2048: 32767, 2050: 32767, 2056: 32767, 2057: (6377397.155,), 2059: (299.1528128,)}
GAUSS = {1024: 1, 3072: 32767, 3074: 32767, 3075: 1, 3080: (9.0,), 3081: (0.0,), 3082: (3.5e6,), 3083: (0.0,),
         3092: (1.0,)}  # fmt: skip


def key_tags(keys):
    """The tags that hold keys."""
    rows, numbers, text = [], [], ""
    for key, value in sorted(keys.items()):
        if isinstance(value, int):
            rows += (key, 0, 1, value)
        elif isinstance(value, str):
            rows += (key, 34737, len(value.encode()) + 1, len(text.encode()))
            text += f"{value}|"
        else:
            rows += (key, 34736, len(value), len(numbers))
            numbers += value
    tags = [GeoTag.shorts(34735, [1, 1, 0, len(keys), *rows])]
    tags += [GeoTag.doubles(34736, numbers)] * bool(numbers)
    return [*tags, *[GeoTag.text(34737, text)] * bool(text)]


def place_of(keys):
    """The georeference of keys alone."""
    return Georeference.from_tags(key_tags(keys))


def with_keys(keys, transform):
    """The bytes of a GeoTIFF with these keys."""
    buffer = BytesIO()
    a, _, c, _, e, f = transform
    place = [GeoTag.doubles(33550, (a, -e, 0)), GeoTag.doubles(33922, (0, 0, 0, c, f, 0))]
    extra = [(tag.code, tag.dtype, tag.count, tag.value, True) for tag in (*key_tags(keys), *place)]
    tifffile.imwrite(buffer, PIXELS[0], metadata=None, extratags=extra)
    return buffer.getvalue()


def read(keys, transform=PLACE):
    """The georeference of a file with these keys, and what rasterio says of the file's coordinate system."""
    data = with_keys(keys, transform)
    with MemoryFile(data) as memory, memory.open() as file:
        return read_raster(data).georeference, file.crs


def of_gdal(crs, transform=PLACE):
    """The same of a file that rasterio writes."""
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", dtype="uint8", count=1, height=4, width=5, crs=crs,
                         transform=Affine(*transform)) as file:  # fmt: skip
            file.write(PIXELS)
        data = bytes(memory.getbuffer())
    with MemoryFile(data) as memory, memory.open() as file:
        return read_raster(data).georeference, file.crs


def on_earth(system, points):
    """Points of a system as longitudes and latitudes on WGS 84."""
    return np.array(Transformer.from_crs(system, "EPSG:4326", always_xy=True).transform(*points))


def unit_of(oracle):
    """The unit of a system of rasterio's, in metres."""
    return CRS.from_wkt(oracle.to_wkt()).axis_info[0].unit_conversion_factor


def check_same_places(georeference, oracle, points):
    """Check that points lie where they lie in the system that GDAL reads, to 2 m.

    A code may lead PROJ to a better way to WGS 84 than the same system in keys.
    """
    assert georeference.crs is not None
    found, expected = (on_earth(CRS.from_user_input(text), points) for text in (georeference.crs, oracle.to_wkt()))
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


UNITS = {
    "a UTM zone in US feet": {**UTM_13, 3076: 9003},
    "a UTM zone in feet on NAD83": {**UTM_13, 2048: 4269, 3076: 9002},
    "a state plane of metres in US feet": {1024: 1, 3072: 26953, 3076: 9003},
    "a code of metres in feet": {1024: 1, 3072: 26913, 3076: 9002},
    "a code of feet in metres": {1024: 1, 3072: 2222, 3076: 9001},
    "a code in a unit of its own": {1024: 1, 3072: 32613, 3076: 32767, 3077: (0.5,)},
    "a code in kilometres": {1024: 1, 3072: 32613, 3076: 9036},
    "a code in fathoms": {1024: 1, 3072: 32613, 3076: 9014},
    "a code in a unit that is seldom used": {1024: 1, 3072: 32613, 3076: 9095},
}


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_of_the_keys_counts(name):
    """Where it is not that of the code or the zone, points, areas and boxes are those of GDAL's system."""
    unit = unit_of(read(UNITS[name])[1])
    side, left, top = 30 / unit, 440280 / unit, 3159720 / unit
    georeference, oracle = read(UNITS[name], (side, 0, left, 0, -side, top))
    check_same_places(georeference, oracle, ([left, left + 5 * side], [top, top - 4 * side]))
    assert pixel_areas(georeference, 4) == pytest.approx([900] * 4)
    corners = on_earth(
        CRS.from_wkt(oracle.to_wkt()),
        ([left + 1.4 * side, left + 1.6 * side], [top - 1.6 * side, top - 1.4 * side]),
    )
    box = (corners[0].min(), corners[1].min(), corners[0].max(), corners[1].max())
    window = window_of_box(box, "EPSG:4326", georeference, (4, 5), "a.tif")
    assert (window.row, window.col, window.height, window.width) == (1, 1, 1, 1)


SAME_UNITS = {
    "named": ({1024: 1, 3072: 26953, 3076: 9001}, "EPSG:26953"),
    "named, in feet": ({1024: 1, 3072: 2222, 3076: 9002}, "EPSG:2222"),
    "named, in US feet": ({1024: 1, 3072: 2225, 3076: 9003}, "EPSG:2225"),
    "by its size": ({1024: 1, 3072: 32613, 3076: 32767, 3077: (1.0,)}, "EPSG:32613"),
    "without a size": ({1024: 1, 3072: 32613, 3076: 32767}, "EPSG:32613"),
    "none": ({1024: 1, 3072: 32613, 3076: 0}, "EPSG:32613"),
    "a size alone": ({1024: 1, 3072: 32613, 3077: (0.3048,)}, "EPSG:32613"),
    "a zone": ({**UTM_13, 3076: 9001}, "EPSG:32613"),
    "of a geographic system": ({1024: 2, 2048: 4326, 3076: 9002}, "EPSG:4326"),
}


@pytest.mark.parametrize("name", SAME_UNITS)
def test_a_unit_that_is_the_codes_changes_nothing(name):
    """The code is the system's name, as rasterio has it."""
    keys, code = SAME_UNITS[name]
    georeference, oracle = read(keys)
    assert georeference.crs == code
    assert oracle.to_epsg() == int(code[5:])


DATUMS = {
    "NAD27": {2048: 4267},
    "DHDN": {2048: 4314},
    "OSGB36": {2048: 4277},
    "Tokyo": {2048: 4301},
    "Pulkovo 1942": {2048: 4284},
    "a datum alone": {2048: 32767, 2050: 6314, 2057: (6377397.155,), 2059: (299.1528128,)},
    "a shift": {**BESSEL, 2062: (598.1, 73.7, 418.2, 0.202, 0.045, -2.455, 6.7)},
    "a shift of three numbers": {**BESSEL, 2062: (582.0, 105.0, 414.0)},
    "a datum in words": {
        **BESSEL,
        2049: "GCS Name = GCS_DHDN|Datum = D_Deutsches_Hauptdreiecksnetz",
    },
    "an ellipsoid": BESSEL,
    "EPSG's ellipsoid": {2048: 4004},
    "WGS 84": {2048: 4326},
}


@pytest.mark.heavy
@pytest.mark.parametrize("projection", [GAUSS, {**UTM_13, 3074: 16032}], ids=["keys", "zone"])
@pytest.mark.parametrize("name", DATUMS)
def test_a_projected_system_keeps_its_datum(name, projection):
    """Points lie on Earth where GDAL's system puts them."""
    middle = 3.5e6 if projection is GAUSS else 5e5
    check_same_places(*read({**projection, **DATUMS[name]}), ([middle - 9e4, middle], [5.4e6, 5.5e6]))


PROJECTIONS = {
    "polar stereographic": "+proj=stere +lat_0=90 +lat_ts=71 +lon_0=-45 +k=1 +datum=NAD83",
    "polar stereographic with a scale": "+proj=stere +lat_0=-90 +lon_0=10 +k=0.97 +datum=WGS84",
    "conic with one parallel": "+proj=lcc +lat_1=46 +lat_0=46 +lon_0=3 +k_0=0.9998 +x_0=600000 +datum=WGS84",
    "cylindrical, equal area": "+proj=cea +lat_ts=30 +lon_0=0 +datum=WGS84",
    "equirectangular": "+proj=eqc +lat_ts=42 +lon_0=10 +datum=WGS84",
    "Robinson": "+proj=robin +lon_0=10 +datum=WGS84",
    "oblique Mercator": "+proj=omerc +lat_0=46 +lonc=7 +alpha=90 +gamma=90 +k=1 +x_0=600000 +ellps=GRS80",
    "Mercator with a parallel": "+proj=merc +lat_ts=41 +lon_0=10 +datum=WGS84",
    "Albers in US feet": "+proj=aea +lat_0=23 +lon_0=-96 +lat_1=29.5 +lat_2=45.5 +datum=NAD83 +units=us-ft",
    "Lambert in kilometres": "+proj=laea +lat_0=52 +lon_0=10 +x_0=4321000 +ellps=GRS80 +units=km",
    "on NAD27": "+proj=aea +lat_0=23 +lon_0=-96 +lat_1=29.5 +lat_2=45.5 +datum=NAD27",
    "from Paris": "+proj=tmerc +lat_0=46 +lon_0=3 +ellps=clrk80 +pm=paris",
    "with a shift": "+proj=utm +zone=33 +ellps=intl +towgs84=-87,-98,-121",
    "Mollweide": "+proj=moll +lon_0=20 +datum=WGS84",
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_projection_is_gdals(name):
    """What rasterio writes is read as rasterio reads it."""
    georeference, oracle = of_gdal(gdal.CRS.from_proj4(PROJECTIONS[name]))
    unit = unit_of(oracle)
    check_same_places(georeference, oracle, ([1000 / unit, 90000 / unit], [2000 / unit, 80000 / unit]))


MERCATOR = {1024: 1, 2048: 4326, 3072: 32767, 3074: 32767, 3075: 7, 3076: 9001, 3080: (10.0,)}


@pytest.mark.parametrize(
    "keys", [{3092: (0.9,)}, {3092: (0.9,), 3081: (0.0,)}, {3092: (1.0,), 3078: (41.0,)}, {3093: (0.9,), 3081: (0.0,)}]
)
def test_mercator_is_true_along_one_parallel(keys):
    """A scale, or the latitude where it is 1, and keys of other projections are those of GDAL."""
    check_same_places(*read({**MERCATOR, **keys}), ([1000, 9e6], [2000, 8e6]))


GEOGRAPHIC = {
    "a sphere": "+proj=longlat +R=6371229",
    "an ellipsoid": "+proj=longlat +a=6378000 +rf=298",
    "a named ellipsoid": "+proj=longlat +ellps=clrk66",
    "another meridian": "+proj=longlat +ellps=clrk80 +pm=paris",
    "a shift": "+proj=longlat +ellps=bessel +towgs84=598.1,73.7,418.2,0.202,0.045,-2.455,6.7",
}


@pytest.mark.parametrize("name", GEOGRAPHIC)
def test_a_geographic_system_of_its_own(name):
    """It is read as rasterio reads it; x is a longitude."""
    georeference, oracle = of_gdal(gdal.CRS.from_proj4(GEOGRAPHIC[name]), (0.5, 0, 9, 0, -0.5, 50))
    check_same_places(georeference, oracle, ([9, 11.0], [50, 48.0]))
    window = window_of_box((369.6, 49.1, 370.4, 49.4), None, georeference, (4, 5), "a.tif")
    assert (window.row, window.col) == (1, 1)


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 7, 8, 9, 10, 11, 14, 15, 16, 17, 21, 23, 24, 28]),
    st.dictionaries(st.sampled_from(range(3078, 3096)), st.floats(-80, 80).map(lambda number: (number,)), max_size=9),
    st.sampled_from([9001, 9002, 9003, 9036, 32767, 0]),
    st.sampled_from([4326, 4269, 4267, 4314, 4047, 32767]),
)
def test_any_keys_are_read_as_gdal_reads_them_or_not_at_all(method, parameters, unit, system):
    """A system that is there is GDAL's, as far as GDAL itself can use its own."""
    georeference, oracle = read(
        {1024: 1, 2048: system, 3072: 32767, 3074: 32767, 3075: method, 3076: unit, **parameters}
    )
    if georeference.crs is None or not oracle:
        return
    points = ([1000, 90000.0], [2000, 80000.0])
    try:
        expected = on_earth(CRS.from_wkt(oracle.to_wkt()), points)
    except (CRSError, ProjError):  # PROJ cannot use these parameters, whoever reads them
        return
    if np.isfinite(expected).all():
        np.testing.assert_allclose(on_earth(CRS.from_user_input(georeference.crs), points), expected, rtol=0, atol=1e-7)


def test_heights_are_left_out():
    """The horizontal system is asked for alone."""
    keys = {**UTM_13, 3076: 9003, 4096: 5773, 4099: 9001}
    assert place_of(keys).crs == read({**UTM_13, 3076: 9003})[0].crs


@pytest.mark.parametrize("keys", [{1025: 1}, {1024: 1, 1025: 1}, {1024: 2, 1026: "a picture"}, {1024: 32767}])
def test_keys_without_a_system_are_none(keys):
    """Nothing is called a system that is not understood where there is none."""
    place = place_of(keys)
    assert (place.crs, dict(place.unread_keys), place.why_no_crs) == (None, {}, "no coordinate system")


@pytest.mark.parametrize("datum", [6326, 6269, 6258])
def test_a_datum_that_tells_the_geographic_system(datum):
    """Its code is the name, as rasterio finds it."""
    georeference, oracle = read({1024: 2, 2048: 32767, 2050: datum, 2054: 9102})
    assert georeference.crs == f"EPSG:{oracle.to_epsg()}"


ODD = {
    "numbers that no key has": {2048: 1 << 20, 1030: -5, 3082: tuple([1.0] * 70000)},
    "keys that no file has": {-7: 1, 1 << 20: 2, 90000: "x"},
    "long texts": {1026: "x" * 70000, 2049: "\x00\x01|\U0001f30d" * 300, 2060: "y" * 60000, 3079: "z" * 9000},
    "no numbers": {2057: (math.nan,), 2059: (math.inf,), 2062: (math.nan, math.nan), 3082: ()},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_keys_are_no_failure(name):
    """Whatever stands in a file, there is a system or none."""
    place = place_of({**UTM_13, 2048: 4267, 3076: 9003, **ODD[name]})
    assert place.crs is None or place.crs.startswith("PROJCS[")
    assert place.crs is not None or place.unread_keys


WKT = 'GEOGCS["x",DATUM["x",SPHEROID["x",6e6,298]],PRIMEM["x",0],UNIT["x",0.0174],EXTENSION["PROJ4","+init=/x"]]'


@pytest.mark.parametrize("key", [1026, 2049, 3073])
@pytest.mark.parametrize(
    "text",
    ["+init=/pipe:x", f"esri pe string = {WKT}", f"A name\nEsri PE string = {WKT}", "Datum = +nadgrids=/pipe|",
     "PROJ CRS string: +init=/pipe:x"],
)  # fmt: skip
def test_a_text_that_may_name_a_file_is_kept_from_gdal(key, text):
    """It is left out; a name is not."""
    keys = {**GAUSS, 2048: 4267, 3076: 9003}
    plain, odd, named = (place_of(one).crs for one in (keys, {**keys, key: text}, {**keys, 1026: "A name"}))
    assert odd == plain
    assert plain.startswith('PROJCS["unnamed"')
    assert named.startswith('PROJCS["A name"')


def test_a_name_in_latin_1_is_no_obstacle() -> None:
    """Old writers put names of systems into their own code page; the system is that of the other keys."""
    crs = "+proj=lcc +lat_1=49 +lat_2=44 +lat_0=46.5 +lon_0=3 +x_0=700000 +y_0=6600000 +ellps=GRS80 +units=m"
    data = geotiff(np.ones((1, 4, 5), np.uint8), crs=crs, transform=Affine(10, 0, 5e5, 0, -10, 5e6))
    assert b"unknown|" in data
    place = read_raster(data.replace(b"unknown|", b"Gr\xf6\xdfe..|")).georeference
    assert place.transform == (10, 0, 5e5, 0, -10, 5e6)
    assert "Lambert_Conformal_Conic_2SP" in place.crs
