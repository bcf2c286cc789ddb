"""Texts of coordinate systems that PROJ may see, with pyproj as the judge of what they are."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import rasterio.crs
from pyproj import CRS
from pyproj.database import query_crs_info
from rasterio.errors import CRSError

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.crs.text import checked_text, rasterio_crs


def proj(text):
    """The system of a text, as pyproj has it."""
    return CRS.from_json_dict(rasterio_crs(text).to_dict(projjson=True))


WKTS = ("WKT1_GDAL", "WKT1_ESRI", "WKT2_2015", "WKT2_2019")
ROTATED = "+proj=ob_tran +o_proj=longlat +o_lat_p=39.25 +o_lon_p=0 +lon_0=18 +R=6371229"
STRINGS = [
    "+proj=utm +zone=14 +datum=WGS84",
    "proj=utm zone=33 south ellps=GRS80",
    "+proj=longlat",
    "+proj=laea +lat_0=52 +lon_0=10 +x_0=4321000 +y_0=3210000 +ellps=GRS80 +towgs84=0,0,0,0,0,0,0 +units=m +no_defs",
    "+proj=geos +h=35785831 +lon_0=0 +sweep=y +type=crs",
    "+proj=merc +a=6378137 +b=6378137 +lat_ts=0 +k=1 +units=m +nadgrids=@null +wktext +no_defs",
    ROTATED,
]
NAMES = [
    *("EPSG:32614", "epsg:4326", "OGC:CRS84", "ESRI:102001", "IAU_2015:30100", "IGNF:LAMB93", "EPSG:32632+5773"),
    *("4326", "  EPSG:3857 ", "WGS 84", "wgs84", "NAD83", "urn:ogc:def:crs:EPSG::4326"),
    *("urn:ogc:def:crs:OGC:1.3:CRS84", "urn:ogc:def:crs,crs:EPSG::4258,crs:EPSG::5773"),
    *("http://www.opengis.net/def/crs/EPSG/0/4326", "https://www.opengis.net/def/crs/OGC/1.3/CRS84"),
]


@pytest.mark.parametrize("text", [*NAMES, *STRINGS])
def test_what_names_no_file_is_what_proj_makes_of_it(text):
    """Codes, names, URNs, addresses and PROJ strings are the systems that they are to pyproj itself."""
    assert proj(text) == CRS.from_user_input(text.strip())


@pytest.mark.heavy
def test_systems_of_all_authorities_in_every_form():
    """Of a system out of PROJ's database its WKT of each kind and its PROJJSON are taken as they are."""
    codes = [f"{info.auth_name}:{info.code}" for info in query_crs_info() if info.auth_name != "IGNF"]
    forms = read = 0
    for code in [*codes[::211], "EPSG:3857", "EPSG:3902", "EPSG:31467", "ESRI:54090"]:
        system = CRS.from_user_input(code)
        with suppress(CRSError):  # its PROJ may know fewer codes than pyproj's
            oracle = rasterio.crs.CRS.from_user_input(code)
            assert rasterio_crs(code) == oracle
            read += 1
        for text in [system.to_wkt(wkt) for wkt in WKTS if can_be(system, wkt)]:
            assert checked_text(text) == text
            forms += 1
        assert json.loads(checked_text(system.to_json())) == system.to_json_dict()
    assert forms > 100
    assert read > 30


@pytest.mark.parametrize("string", STRINGS)
def test_what_proj_writes_of_proj_strings(string):
    """WKT of a PROJ string may have that in it, or a name of PROJ's own for the projection; it is read back."""
    system = CRS.from_user_input(string)
    for wkt in WKTS:
        if can_be(system, wkt) and "BOUNDCRS" not in (text := system.to_wkt(wkt)):
            assert rasterio_crs(text).to_wkt() == rasterio.crs.CRS.from_wkt(text).to_wkt()


def can_be(system, wkt):
    """Whether a system can be written as this WKT."""
    try:
        return bool(system.to_wkt(wkt))
    except Exception:  # noqa: BLE001 - pyproj raises several kinds
        return False


BASE = json.dumps(CRS.from_epsg(32632).to_json_dict())
MALFORMED = {
    "nothing": ("  ", "neither a code nor WKT nor a PROJ string"),
    "no proj": ("+datum=WGS84", "neither a code nor WKT nor a PROJ string"),
    "a word beside": ("EPSG:4326 x", "neither a code"),
    "two codes": ("EPSG:4326+5773+1", "neither a code"),
    "a name, which takes PROJ long": ("WGS 84 / UTM zone 32N", "neither a code"),
    "a NUL": ("EPSG:4326\0", "neither a code"),
    "digits of another script": ("\uff14\uff13\uff12\uff16", "neither a code"),
    "not closed": ('GEOGCS["x"', "ends too early"),
    "closed twice": ('GEOGCS["x"]]', "not valid WKT from ']'"),
    "two at once": ('GEOGCS["x"]GEOGCS["y"]', "not valid WKT from 'GEOGCS"),
    "no comma": ('GEOGCS["x" "y"]', "not valid WKT from '\"y\"]'"),
    "of an operation": ('COORDINATEOPERATION["x"]', "begins with 'COORDINATEOPERATION'"),
    "very deep": ("GEOGCS[" * 4000, "not valid WKT from"),
    "deep JSON": ('{"a":' * 5000, "not valid JSON"),
    "JSON in JSON": (BASE.replace('"area"', '"more": ' + "[" * 30 + "]" * 30 + ', "area"'), "too deep"),
    "JSON of numbers that are none": ('{"type": "GeographicCRS", "x": NaN}', "NaN is not a number"),
    "JSON of no system": ('{"type": "Ellipsoid"}', "not the PROJJSON"),
    "a list": ('["EPSG", "4326"]', "neither a code"),
    "too long": ("GEOGCS[" + '"x",' * 10_000 + "1]", "32768 at most"),
}


@pytest.mark.parametrize(("text", "says"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_system_is_refused(text, says):
    """An error says what is wrong with it and what to give."""
    with pytest.raises(InputError) as caught:
        proj(text)
    assert says in str(caught.value)
    assert 'give "EPSG:n"' in str(caught.value)
    assert len(str(caught.value)) < 600


def test_what_proj_does_not_know():
    """Is an error with PROJ's words."""
    with pytest.raises(InputError, match=r"PROJ does not know 'EPSG:999999' \(.+\); give \"EPSG:n\""):
        proj("EPSG:999999")
