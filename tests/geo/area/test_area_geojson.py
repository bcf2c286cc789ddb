"""The forms of an area of interest, and the refusal of GeoJSON that is no area."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.geo import area_json, area_of, area_text
from vllm_mmout.geo.area import geojson, polygons

SQUARE = [[[8, 47], [9, 47], [9, 48], [8, 47]]]
POLYGON = {"type": "Polygon", "coordinates": SQUARE}


def feature(geometry=POLYGON, **more):
    return {"type": "Feature", "properties": {}, "geometry": geometry, **more}


def collection(*features, **more):
    return {"type": "FeatureCollection", "features": list(features), **more}


def named(name):
    return {"type": "name", "properties": {"name": name}}


@pytest.mark.parametrize("form", ["dict", "text", "path", "Path", "bytes with a mark"])
def test_geojson_is_read_in_every_form(form, tmp_path):
    """A dict, its text and the path of a file give the same area, in longitude and latitude."""
    path, text = tmp_path / "a.geojson", json.dumps(feature())
    path.write_bytes(b"\xef\xbb\xbf" * (form == "bytes with a mark") + text.encode())
    forms = {"dict": feature(), "text": text, "path": str(path)}
    area = area_of(area_text(forms.get(form, path)))
    assert area.crs == "EPSG:4326"
    np.testing.assert_array_equal(area.features[0].polygons[0][0], SQUARE[0])


def test_geometries_of_shapely_and_geopandas_are_read():
    """A geometry of shapely is in the input's system, a frame of geopandas in its own."""
    shapely = pytest.importorskip("shapely")
    geopandas = pytest.importorskip("geopandas")
    geometry = shapely.geometry.shape(POLYGON)
    assert area_of(area_text(geometry)).crs is None
    assert area_of(area_text(geometry, "EPSG:32632")).crs == "EPSG:32632"
    frame = geopandas.GeoDataFrame({"name": ["a", "b"], "n": np.arange(2)}, geometry=[geometry] * 2, crs=32632)
    area = area_of(area_text(frame))
    assert (area.crs, [each.name for each in area.features]) == ("EPSG:32632", ["a", "b"])
    assert area.features[1].properties == {"name": "b", "n": 1}
    assert area_of(area_text(frame.geometry)).crs == "EPSG:32632"
    assert area_of(area_text(frame.set_crs(None, allow_override=True))).crs is None


def test_only_polygons_of_collections_are_parts():
    """A feature may be a GeometryCollection, and have positions with heights."""
    high = {"type": "MultiPolygon", "coordinates": [[[[*place, 400.0] for place in SQUARE[0]]], SQUARE]}
    area = area_of(area_text({"type": "GeometryCollection", "geometries": [POLYGON, high]}))
    assert len(area.features[0].polygons) == 3


@pytest.mark.parametrize(
    ("member", "crs", "expected"),
    [
        ({}, None, "EPSG:4326"),
        ({}, "EPSG:32632", "EPSG:32632"),
        ({"crs": None}, None, None),
        ({"crs": None}, "EPSG:32632", "EPSG:32632"),
        ({"crs": named("urn:ogc:def:crs:OGC:1.3:CRS84")}, "EPSG:4326", "EPSG:4326"),
        ({"crs": named("urn:ogc:def:crs:EPSG::32632")}, "EPSG:32632", "EPSG:32632"),
        ({"crs": named("EPSG:32633")}, None, "EPSG:32633"),
    ],
)
def test_the_system_is_what_is_stated(member, crs, expected):
    """The old member ``crs`` counts, then ``aoi_crs``, then RFC 7946. The text states it, and is read alike again."""
    text = area_text({**POLYGON, **member}, crs)
    assert area_of(text).crs == expected
    assert area_text(text, crs) == text


def test_a_contradiction_is_refused():
    """Both systems are named."""
    with pytest.raises(OptionError, match="aoi_crs is 'EPSG:4326', and aoi itself states 'EPSG:32632'") as caught:
        area_text({**POLYGON, "crs": named("EPSG:32632")}, "EPSG:4326")
    assert caught.value.param == "aoi_crs"


def test_features_have_unique_names():
    """An id, else the property ``name``, else the number. Ids that only count all features are no names."""

    def names(*features):
        return [each.name for each in area_of(area_text(collection(*features))).features]

    assert names(feature(id="x", properties={"name": "y"}), feature(properties={"name": "y"}), feature()) == [
        *("x", "y", "3")
    ]
    assert names(feature(id="0", properties={"name": "y"}), feature(id=1)) == ["y", "2"]
    assert names(feature(id="0", properties={"name": "y"}), feature(id=17)) == ["0", "17"]
    assert names(*(feature(id=text, properties={"name": "y"}) for text in "312")) == ["3", "1", "2"]
    assert names(*[feature(properties={"name": "lake"})] * 2, feature()) == ["lake (1)", "lake (2)", "3"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "Point", "coordinates": [1, 2]}, "has a Point, which covers no area; buffer it"),
        (
            collection(feature({"type": "LineString", "coordinates": [[1, 2], [3, 4]]})),
            "LineString.* at feature 1; buffer",
        ),
        (collection(), "without features"),
        (collection(POLYGON), "something else than a Feature"),
        (collection(feature(), feature(None)), "no geometry at feature 2; leave"),
        (feature({"type": "Polygon", "coordinates": []}), "an empty geometry"),
        ({"type": "Topology"}, "got the type 'Topology'"),
        ({"type": "Polygon", "coordinates": [[[8, 47], [9, 47], [9, 48]]]}, "3 positions that is not closed"),
        ({"type": "Polygon", "coordinates": [[[8, 47], [9, 47], [9, 48], [8, 48]]]}, "4 positions that is not closed"),
        ({"type": "Polygon", "coordinates": [[["8", 47]] * 4]}, "no list of positions"),
        ({"type": "Polygon", "coordinates": [[[8], [9], [9], [8]]]}, "no list of positions"),
        ({"type": "Polygon", "coordinates": [[[8, 47], [9]] * 2]}, "no list of positions"),
        ({"type": "Polygon", "coordinates": [[{}] * 4]}, "no list of positions"),
        ({"type": "Polygon", "coordinates": [[[8, float("inf")]] * 4]}, "no list of positions"),
        ({"type": "Polygon", "coordinates": {}}, "coordinates that are no list"),
        ({"type": "Polygon", "coordinates": [[[5e5, 5e6]] * 4]}, r"position \(500000, 5000000\); name .* aoi_crs="),
        ({**POLYGON, "crs": named("/etc/passwd")}, "a coordinate system that cannot be used"),
        ({**POLYGON, "crs": {"type": "link", "properties": {"href": "http://host"}}}, "a member crs without a name"),
        ({**POLYGON, "crs": named("EPSG:5773")}, "geographic or projected"),
        ('{"type": "Polygon", "coordinates": [[[1e999, 1]]]}', "no valid JSON|not finite"),
        ("[1]", "must be a GeoJSON object"),
        ('{"a":' * 100_000, "no valid JSON"),
        (7, "must be GeoJSON .*, got int"),
        (b"{}", "must be GeoJSON"),
        ("https://host/area.geojson", "a file on this machine"),
        ("no-such.geojson", "cannot be read: No such file"),
        ("/", "cannot be read|no file"),
        (__file__, r"no GeoJSON; in Python give geopandas\.read_file"),
    ],
)
def test_what_is_no_area_is_refused(data, message):
    """The error belongs to the option, and says what is wrong."""
    with pytest.raises(OptionError, match=message) as caught:
        area_text(data)
    assert caught.value.param == "aoi"


def test_limits(monkeypatch):
    """Positions, features, depth and text are bounded, before arrays are made of them."""
    monkeypatch.setattr(polygons, "MOST_VERTICES", 7)
    with pytest.raises(OptionError, match="more than 7 positions"):
        area_text(collection(feature(), feature(), a=1))
    monkeypatch.setattr(polygons, "MOST_FEATURES", 2)
    with pytest.raises(OptionError, match="3 features, and may have 2"):
        area_text(collection(*[feature()] * 3))
    nested = POLYGON
    for _ in range(10):
        nested = {"type": "GeometryCollection", "geometries": [nested]}
    with pytest.raises(OptionError, match="nested deeper than 8"):
        area_text(nested)
    monkeypatch.setattr(geojson, "LONGEST_AREA", 100)
    with pytest.raises(OptionError, match="characters, and may have 100"):
        area_text({**POLYGON, "a": "x" * 100})


def test_the_network_names_no_file(tmp_path):
    """What comes from the network must be JSON; the path of a file is refused without a look at it."""
    path = tmp_path / "a.geojson"
    path.write_text(json.dumps(POLYGON))
    with pytest.raises(OptionError, match="must be a GeoJSON object"):
        area_json(str(path))
    assert area_json(json.dumps(POLYGON)) == json.dumps(POLYGON)
