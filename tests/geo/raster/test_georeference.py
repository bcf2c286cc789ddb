"""Georeference: fields, the tags they came from, and what is written of them."""

from __future__ import annotations

import math
from dataclasses import replace
from io import BytesIO

import numpy as np
import pyproj
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import Transformer
from rasterio.control import GroundControlPoint as RasterioPoint
from rasterio.crs import CRS
from rasterio.io import MemoryFile
from rasterio.transform import Affine

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.ground_points import GroundControlPoint
from vllm_mmout.geo.raster.opened import read_raster
from vllm_mmout.geo.raster.tags import GeoTag
from vllm_mmout.geo.raster.writing import write_geotiff

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

UTM = (30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0)
PIXELS = np.zeros((1, 4, 5), "uint8")


def from_rasterio(*, tags: dict[str, str] | None = None, gcps: object = None, **options: object) -> bytes:
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", dtype="uint8", count=1, height=4, width=5, **options) as file:
            file.update_tags(**(tags or {}))
            if gcps:
                file.gcps = gcps
            file.write(PIXELS)
        return bytes(memory.getbuffer())


def written(georeference: Georeference) -> bytes:
    buffer = BytesIO()
    write_geotiff(buffer, PIXELS, georeference=georeference)
    return buffer.getvalue()


def with_tags(tags: list[GeoTag]) -> bytes:
    """A TIFF with these very tags."""
    buffer = BytesIO()
    extra = [(tag.code, tag.dtype, tag.count, tag.value, True) for tag in tags]
    tifffile.imwrite(buffer, PIXELS[0], metadata=None, extratags=extra)
    return buffer.getvalue()


def seen_by_rasterio(data: bytes) -> dict[str, object]:
    with MemoryFile(data) as memory, memory.open() as file:
        return {
            "crs": file.crs,
            "transform": tuple(file.transform)[:6],
            "gcps": [(point.row, point.col, point.x, point.y, point.z) for point in file.gcps[0]],
            "gcps_crs": file.gcps[1],
            "kind": file.tags().get("AREA_OR_POINT"),
        }


@pytest.mark.parametrize("crs", ["EPSG:32614", "epsg:4326", " EPSG:3857 ", CRS.from_epsg(32614).to_wkt()])
def test_a_coordinate_system_with_a_code_is_named_by_it(crs: str) -> None:
    """However the system is given, a known code is its name, and rasterio reads it."""
    georeference = Georeference(crs=crs, transform=UTM)
    assert georeference.crs is not None
    assert georeference.crs.startswith("EPSG:")
    assert seen_by_rasterio(written(georeference))["crs"] == CRS.from_user_input(crs.strip())


@pytest.mark.parametrize(
    "proj",
    ["+proj=laea +lat_0=12 +lon_0=3 +datum=WGS84", "+proj=moll +datum=WGS84", "+proj=sinu +R=6371007.181 +units=m"],
)
def test_a_projected_system_without_a_code_is_written_as_wkt(proj: str) -> None:
    """WKT goes through the file: rasterio reads an equal system, and we read the text again."""
    crs = CRS.from_proj4(proj)
    data = written(Georeference(crs=crs.to_wkt(), transform=UTM))
    assert CRS.from_wkt(read_raster(data).georeference.crs) == crs
    assert CRS.from_wkt(seen_by_rasterio(data)["crs"].to_wkt()) == crs


@pytest.mark.parametrize(
    "proj",
    [
        "+proj=laea +lat_0=12 +lon_0=3 +datum=WGS84",
        "+proj=aea +lat_0=23 +lon_0=-96 +lat_1=29.5 +lat_2=45.5 +datum=NAD83",
        "+proj=lcc +lat_0=40 +lon_0=-96 +lat_1=33 +lat_2=45 +x_0=500 +ellps=GRS80",
        "+proj=sinu +R=6371007.181 +units=m",
        "+proj=tmerc +lat_0=1 +lon_0=9 +k=0.9998 +x_0=3500000 +ellps=WGS84",
        "+proj=utm +zone=14 +ellps=WGS84",
        "+proj=utm +zone=33 +south +datum=WGS84",
        "+proj=moll +datum=WGS84",
        "+proj=geos +h=35785831 +datum=WGS84",
    ],
)
def test_a_system_spelled_out_key_by_key_is_read_as_an_equal_one(proj: str) -> None:
    """For a user-defined projection in a file of rasterio's, ours parses to the system that rasterio reads."""
    data = from_rasterio(crs=CRS.from_proj4(proj), transform=Affine(*UTM))
    ours = read_raster(data).georeference.crs
    assert ours is not None
    assert CRS.from_user_input(ours) == seen_by_rasterio(data)["crs"]


def test_a_code_that_nobody_gave_out_is_no_system() -> None:
    """It places nothing to rasterio, and is none here; that there are keys is known, and an error can say it."""
    data = with_tags([GeoTag.shorts(34735, (1, 1, 0, 2, 1024, 0, 1, 1, 3072, 0, 1, 30999))])
    place = read_raster(data).georeference
    assert seen_by_rasterio(data)["crs"].to_wkt().startswith("LOCAL_CS")
    assert place.crs is None
    assert place.unread_keys == {1024: 1, 3072: 30999}
    assert "not understood here (assign it, as with gdal_edit.py -a_srs)" in place.why_no_crs
    assert replace(place, crs="EPSG:32614").unread_keys == {}


@pytest.mark.parametrize(
    "proj",
    [
        "+proj=longlat +R=6371229",
        "+proj=longlat +a=6371229 +rf=290.5",
        "+proj=longlat +a=6371000 +b=6360000",
        "+proj=longlat +ellps=bessel +towgs84=598.1,73.7,418.2,0.202,0.045,-2.455,6.7",
        "+proj=longlat +ellps=WGS84",
        "+proj=longlat +a=6378137 +rf=298 +pm=paris",
        "+proj=longlat +datum=NAD27",
        "+proj=longlat +ellps=clrk66 +pm=10",
    ],
)
def test_a_geographic_system_without_a_code_is_written_as_keys(proj: str) -> None:
    """Rasterio reads the same system from the file, x before y, and so do we."""
    wkt = CRS.from_proj4(proj).to_wkt()
    data = written(Georeference(crs=wkt, transform=(0.5, 0.0, 9.0, 0.0, -0.5, 50.0)))
    system = pyproj.CRS.from_wkt(wkt)
    for text in (seen_by_rasterio(data)["crs"].to_wkt(), read_raster(data).georeference.crs):
        found = pyproj.CRS.from_user_input(text)
        assert found.equals(system, ignore_axis_order=True)
        places = [Transformer.from_crs(one, 4326, always_xy=True).transform(9.25, 49.5) for one in (found, system)]
        assert places[0] == pytest.approx(places[1], abs=1e-9)


def test_pixel_is_point_moves_tags_not_the_transform() -> None:
    """The transform counts from the corner for both kinds; the file holds the half pixel, as rasterio reads it."""
    area, point = (Georeference(crs="EPSG:32614", transform=UTM, pixel_is_point=kind) for kind in (False, True))
    assert seen_by_rasterio(written(area)) | {"kind": "Point"} == seen_by_rasterio(written(point))
    assert read_raster(written(point)).georeference.transform == UTM
    with tifffile.TiffFile(BytesIO(written(point))) as tiff:
        assert tiff.pages[0].tags[33922].value == (0, 0, 0, 440295, 3159705, 0)


@pytest.mark.parametrize("kind", ["Area", "Point"])
def test_ground_control_points_are_those_of_rasterio(kind: str) -> None:
    """Points, their system and the kind of pixel are read as rasterio reads them, and written as they were."""
    points = [RasterioPoint(0, 0, 10, 50, 1), RasterioPoint(4, 0, 10, 49, 2), RasterioPoint(0, 5, 11, 50, 3)]
    data = from_rasterio(tags={"AREA_OR_POINT": kind}, gcps=(points, CRS.from_epsg(4326)))
    georeference = read_raster(data).georeference
    oracle = seen_by_rasterio(data)
    assert (georeference.crs, georeference.gcps_crs, georeference.transform) == (None, "EPSG:4326", None)
    assert [(p.row, p.col, p.x, p.y, p.z) for p in georeference.gcps] == oracle["gcps"]
    assert georeference.pixel_is_point == (kind == "Point")
    assert seen_by_rasterio(written(georeference)) == oracle


def test_points_without_a_system_are_written() -> None:
    """Rasterio reads them again."""
    points = tuple(GroundControlPoint(*at, *at, 0.0) for at in ((0.0, 0.0), (4.0, 0.0), (0.0, 5.0)))
    seen = seen_by_rasterio(written(Georeference(gcps=points)))
    assert seen["gcps"] == [(p.row, p.col, p.x, p.y, p.z) for p in points]
    assert not seen["gcps_crs"]


def test_a_changed_field_is_written() -> None:
    """Another transform or system stands in the file, the other of the two as it was."""
    source = read_raster(from_rasterio(crs="EPSG:32614", transform=Affine(*UTM))).georeference
    moved = replace(source, transform=(30.0, 0.0, 440310.0, 0.0, -30.0, 3159720.0))
    assert seen_by_rasterio(written(moved))["transform"] == moved.transform
    assert seen_by_rasterio(written(moved))["crs"] == CRS.from_epsg(32614)
    other = replace(source, crs="EPSG:4326")
    assert seen_by_rasterio(written(other))["crs"] == CRS.from_epsg(4326)
    assert seen_by_rasterio(written(other))["transform"] == UTM
    assert seen_by_rasterio(written(replace(source, crs=None)))["crs"] is None


@settings(max_examples=60)
@given(
    st.lists(st.floats(-1e7, 1e7), min_size=6, max_size=6).filter(lambda n: abs(n[0] * n[4] - n[1] * n[3]) > 1),
    st.lists(st.integers(1, 5000), min_size=2, max_size=2),
    st.sampled_from(["Area", "Point"]),
)
def test_a_resized_transform_is_that_of_rasterio(numbers: list[float], old: list[int], kind: str) -> None:
    """Any transform scales as rasterio's Affine, from a file's own tags too, and its file says so to rasterio."""
    made = Georeference(crs="EPSG:32614", transform=tuple(numbers), pixel_is_point=kind == "Point")
    read = read_raster(written(made)).georeference
    resized = [one.resized(tuple(old), (4, 5)) for one in (made, read)]
    for one, start in zip(resized, (made, read), strict=True):
        oracle = Affine(*start.transform) @ Affine.scale(old[1] / 5, old[0] / 4)
        assert one.transform == tuple(oracle)[:6]
        seen = seen_by_rasterio(written(one))
        size = max(map(abs, one.transform))
        assert seen["transform"] == pytest.approx(one.transform, abs=1e-12 * size)
        assert (seen["crs"], seen["kind"]) == (CRS.from_epsg(32614), kind)


@pytest.mark.parametrize("kind", ["Area", "Point"])
def test_resized_ground_control_points_stay_on_their_place(kind: str) -> None:
    """Twice the rows and half the columns: positions in pixels follow, coordinates stay, and rasterio reads it."""
    points = [RasterioPoint(0, 0, 10, 50, 1), RasterioPoint(3.5, 0, 10, 49, 2), RasterioPoint(0, 5, 11, 50, 3)]
    data = from_rasterio(tags={"AREA_OR_POINT": kind}, gcps=(points, CRS.from_epsg(4326)))
    expected = [(row * 2, col / 2, *place) for row, col, *place in seen_by_rasterio(data)["gcps"]]
    seen = seen_by_rasterio(written(read_raster(data).georeference.resized((4, 10), (8, 5))))
    assert seen["gcps"] == expected
    assert seen["gcps_crs"] == CRS.from_epsg(4326)


def test_coefficients_move_with_the_pixels() -> None:
    """Offsets of line and sample follow a window, all are written as rasterio has them; other pixels have none."""
    numbers = [-1.0, -1.0, *map(float, range(2, 92))]
    data = with_tags([GeoTag.doubles(50844, numbers)])
    place = read_raster(data).georeference
    with MemoryFile(data) as memory, memory.open() as file:
        assert place.rpcs == file.rpcs
    part = place.shifted(2, 1)
    assert (part.rpcs.line_off, part.rpcs.samp_off, place.rpcs.line_off) == (0.0, 2.0, 2.0)
    with MemoryFile(written(part)) as memory, memory.open() as file:
        assert file.rpcs == part.rpcs
        assert (file.rpcs.line_num_coeff, file.rpcs.samp_den_coeff) == (numbers[12:32], numbers[72:])
    assert place.resized((4, 5), (4, 5)) is place
    assert place.resized((4, 5), (8, 10)).rpcs is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"transform": (1, 2, 3)}, "six finite numbers"),
        ({"transform": (1, 0, math.nan, 0, 1, 0)}, "six finite numbers"),
        ({"crs": "  "}, 'crs must be "EPSG:n", WKT or None'),
        ({"transform": UTM, "gcps": (GroundControlPoint(0, 0, 0, 0),)}, "both set"),
        ({"gcps_crs": "EPSG:4326"}, "without gcps"),
    ],
)
def test_malformed_fields_are_refused(fields: dict[str, object], words: str) -> None:
    """What cannot stand in a GeoTIFF is an error when it is made."""
    with pytest.raises(InputError, match=words):
        Georeference(**fields)


@pytest.mark.parametrize(
    ("crs", "words"),
    [
        ('LOCAL_CS["x",UNIT["metre",1]]', "cannot be written to a GeoTIFF.*gdalwarp -t_srs"),
        ("+proj=ob_tran +o_proj=longlat +o_lat_p=39 +o_lon_p=0 +lon_0=18 +R=6371229", "cannot be written.*gdalwarp"),
        ("EPSG:5773", "'EPSG:5773' cannot be written to a GeoTIFF; give a projected, geographic or geocentric one"),
        ("EPSG:7415", 'geocentric one, as "EPSG:n"'),
        ("EPSG:99999", "PROJ does not know 'EPSG:99999'"),
        ('GEOGCS["x",DATUM["x",SPHEROID["x",6e6,x]],PRIMEM["x",0],UNIT["degree",0.0174532925]]', "PROJ does not know"),
        ("+proj=longlat +ellps=bessel +nadgrids=./x", "is refused as a coordinate system"),
    ],
)
def test_a_system_that_no_geotiff_can_hold_is_refused(crs: str, words: str) -> None:
    """Writing says which system, why not, and what to give."""
    with pytest.raises(InputError, match=words):
        written(Georeference(crs=crs, transform=UTM))


@pytest.mark.parametrize("crs", ["WGS 84", "ESRI:102003", "urn:ogc:def:crs:EPSG::32614", "IGNF:LAMB93", "EPSG:4979"])
def test_systems_by_any_name_are_written(crs: str) -> None:
    """Rasterio reads the system from the file that it has for the name, as we do."""
    data = written(Georeference(crs=crs, transform=UTM))
    expected = CRS.from_user_input({"WGS 84": "EPSG:4326"}.get(crs, crs))
    assert seen_by_rasterio(data)["crs"] == expected
    assert CRS.from_user_input(read_raster(data).georeference.crs) == expected


def test_tags_of_other_things_are_no_georeference() -> None:
    """A file without geo tags has no georeference at all."""
    assert Georeference.from_tags([GeoTag.text(270, "a picture")]) is None
    assert read_raster(from_rasterio()).georeference is None


@pytest.mark.parametrize(
    "tags",
    [
        [GeoTag.doubles(33550, (10, -10, 0)), GeoTag.doubles(33922, (0, 0, 0, 100, 200, 0))],
        [GeoTag.doubles(33550, (10, 10, 0))],
        [GeoTag.doubles(33550, (10, 10, 0)), GeoTag.doubles(33922, (1, 2, 0, 100, 200, 0, 3, 3, 0, 200, 100, 0))],
        [GeoTag.doubles(33550, (0, 0, 0)), GeoTag.doubles(33922, (1, 2, 0, 100, 200, 0))],
        [
            GeoTag.doubles(33550, (10, 20, 0)),
            GeoTag.doubles(33922, (0, 0, 0, 100, 200, 0)),
            GeoTag.doubles(34264, (1, 0, 0, 7, 0, -1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1)),
        ],
        [
            GeoTag.doubles(34264, (1, 2, 0, 7, 3, -1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1)),
            GeoTag.shorts(34735, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 2, 3072, 0, 1, 32614)),
        ],
        [GeoTag.shorts(34735, (1, 1, 0, 1, 3072, 0, 1, 32614)), GeoTag.doubles(33550, (1, 1, 0))],
        [GeoTag.shorts(34735, (1, 1, 0, 3, 1024, 0, 1, 2, 2048, 0, 1, 4326, 3072, 0, 1, 32614))],
        [GeoTag.shorts(34735, (1, 1, 1, 4, 1024, 0, 1, 2, 1025, 0, 1, 1, 2048, 0, 1, 4326, 4096, 0, 1, 4979))],
        [GeoTag.shorts(34735, (1, 1, 0, 4, 1024, 0, 1, 1, 2048, 0, 1, 4326, 3072, 0, 1, 32767, 3074, 0, 1, 16133))],
        [GeoTag.shorts(34735, (1, 1, 0, 4, 1024, 0, 1, 1, 2048, 0, 1, 4326, 3072, 0, 1, 32767, 3074, 0, 1, 16014))],
        [GeoTag.shorts(34735, (1, 1, 0, 4, 1024, 0, 1, 1, 2048, 0, 1, 4269, 3072, 0, 1, 32767, 3074, 0, 1, 16014))],
        [GeoTag.shorts(34735, (1, 1, 0, 3, 1024, 0, 1, 3, 1025, 0, 1, 1, 2048, 0, 1, 4978))],
    ],
    ids=["negative scale", "scale alone", "two ties", "no scale", "scale and matrix", "matrix of points", "no model",
         "two codes", "heights", "zone south", "zone north", "zone on NAD83", "geocentric"],
)  # fmt: skip
def test_unusual_tags_mean_what_gdal_takes_them_for(tags: list[GeoTag]) -> None:
    """Files that leave the standard's paths are read as rasterio reads them."""
    georeference = Georeference.from_tags(tags)
    oracle = seen_by_rasterio(with_tags(tags))
    assert (georeference.transform or (1, 0, 0, 0, 1, 0)) == oracle["transform"]
    assert (CRS.from_string(georeference.crs) if georeference.crs else None) == oracle["crs"]
    assert [(p.row, p.col, p.x, p.y, p.z) for p in georeference.gcps] == oracle["gcps"]


def test_keys_that_point_nowhere_are_passed_over() -> None:
    """A directory cut short, or pointing behind its texts and numbers, gives what can be read."""
    keys = (1, 1, 0, 9, 1024, 0, 1, 1, 3072, 0, 1, 32614, 3073, 34737, 50, 0, 2057, 34736, 4, 9, 1026)
    georeference = Georeference.from_tags([GeoTag.shorts(34735, keys), GeoTag.text(34737, "short|")])
    assert georeference.crs == "EPSG:32614"
