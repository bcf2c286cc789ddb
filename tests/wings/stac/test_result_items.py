"""STAC items and collections of results: valid, complete, and loaded by odc-stac with the right pixels."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import pytest
from buckets import bucket, held, put, s3  # noqa: F401 - fixtures
from PIL import Image
from stac_catalogue import accepted

from vllm_mmout.cli import main
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Georeference, write_geotiff

pystac = pytest.importorskip("pystac")
pytest.importorskip("jsonschema", reason="pystac's validation needs it")
validation = pytest.importorskip("pystac.validation")
from vllm_mmout.wings.stac.documents import Document  # noqa: E402
from vllm_mmout.wings.stac.public import collection, item_of, write_item  # noqa: E402

pytestmark = pytest.mark.heavy
ARRAY = np.random.default_rng(0).integers(0, 2, (1, 90, 80)).astype(np.uint8)
ARRAY[0, :10, :20] = 255
PALETTE = np.array([[217, 207, 180], [0, 114, 178]], np.uint8)
TAGS = {
    "MMOUT_MODEL": "flood",
    "MMOUT_PROCESSOR": "segmentation",
    "MMOUT_ASSUMED": "Counts were taken as stored.",
    "MMOUT_DATES": "2024-06-01T10:00:00Z\n2024-06-11T10:00:00Z",
    "MMOUT_DESCRIBED_BY": "https://example.org/items/a.json",
}
UTM = Georeference(crs="EPSG:32633", transform=(30, 0, 500000, 0, -30, 5300040))


def write(path, *, georeference=UTM, metadata=TAGS):
    """Write a result of two classes as this package does."""
    names = {"class_names": ["land", "open water"], "palette": PALETTE}
    write_geotiff(path, ARRAY, nodata=255, georeference=georeference, metadata=metadata, **names)
    return path


def check(content):
    """Raise unless an item or a collection fits the schemas of STAC 1.1, which pystac has on disk."""
    validation.validate_dict(content, extensions=[])


def test_an_item_has_what_the_file_says_of_itself(tmp_path):
    """Place, bands, classes with colours, checksum, dates, model and origin come from the file and its tags."""
    path = write(tmp_path / "map.tif")
    item = item_of(path).to_dict()
    check(item)
    data, properties = item["assets"]["data"], item["properties"]
    assert (data["proj:code"], data["proj:shape"]) == ("EPSG:32633", [90, 80])
    assert data["proj:transform"][:6] == [30, 0, 500000, 0, -30, 5300040]
    assert data["proj:bbox"] == [500000, 5297340, 502400, 5300040]
    (band,) = data["bands"]
    assert (band["data_type"], band["nodata"], band["raster:spatial_resolution"]) == ("uint8", 255, 30)
    assert band["statistics"]["maximum"] == 1
    assert [
        (each["value"], each["name"], each["title"], each["color_hint"]) for each in data["classification:classes"]
    ] == [
        (0, "land", "land", "D9CFB4"),
        (1, "open_water", "open water", "0072B2"),
    ]
    content = path.read_bytes()
    assert data["file:checksum"] == "1220" + hashlib.sha256(content).hexdigest()
    assert data["file:size"] == len(content)
    assert (properties["start_datetime"], properties["end_datetime"]) == (
        "2024-06-01T10:00:00Z",
        "2024-06-11T10:00:00Z",
    )
    assert properties["processing:lineage"] == (
        "model flood, output processor segmentation. Assumed: Counts were taken as stored."
    )
    assert [link["href"] for link in item["links"] if link["rel"] == "derived_from"] == [TAGS["MMOUT_DESCRIBED_BY"]]
    west, south, east, north = item["bbox"]
    assert 15 <= west < east < 15.04
    assert 47.8 < south < north < 47.86


def test_a_footprint_across_the_antimeridian_is_cut(tmp_path):
    """The geometry has two parts, and west is greater than east, as GeoJSON demands."""
    place = Georeference(crs="EPSG:32601", transform=(3000, 0, 250000, 0, -3000, 7000000))
    item = item_of(write(tmp_path / "map.tif", georeference=place)).to_dict()
    check(item)
    assert item["geometry"]["type"] == "MultiPolygon"
    assert item["bbox"][0] > item["bbox"][2]


@pytest.mark.parametrize(
    ("west", "step", "box"),
    [
        (179.9, 0.005, [179.9, -179.7]),
        (539.9, 0.005, [179.9, -179.7]),
        (-180.1, 0.005, [179.9, -179.7]),
        (180.1, 0.005, [-179.9, -179.5]),
        (0.0, 4.5, [-180, 180]),
    ],
)
def test_a_footprint_in_degrees_is_cut_too(tmp_path, west, step, box):
    """Longitudes beyond 180 degrees are counted from -180; a result of the whole turn is one part."""
    place = Georeference(crs="EPSG:4326", transform=(step, 0, west, 0, -0.01, 5))
    item = item_of(write(tmp_path / "map.tif", georeference=place)).to_dict()
    check(item)
    assert item["geometry"]["type"] == ("MultiPolygon" if box[0] > box[1] else "Polygon")
    assert item["bbox"] == pytest.approx([box[0], 4.1, box[1], 5])


@pytest.mark.parametrize("crs", ["IAU_2015:30100", "+proj=geos +h=35785831 +sweep=y +datum=WGS84"])
def test_a_place_that_is_not_on_earth_has_no_geometry(tmp_path, crs):
    """A map of the Moon, and one with a corner off the Earth, have their coordinate system and no longitudes."""
    place = Georeference(
        crs=crs, transform=(200000, 0, -9e6, 0, -200000, 9e6) if crs[0] == "+" else (1, 0, 0, 0, -1, 9)
    )
    item = item_of(write(tmp_path / "map.tif", georeference=place)).to_dict()
    check(item)
    assert (item["geometry"], "bbox" in item) == (None, False)
    assert item["assets"]["data"]["proj:transform"]
    assert "so there is no geometry" in item["properties"]["description"]


def test_an_undated_result_without_a_place_says_so(tmp_path):
    """The item has no geometry, and its description says what its datetime is."""
    item = item_of(write(tmp_path / "map.tif", georeference=None, metadata={})).to_dict()
    check(item)
    assert item["geometry"] is None
    assert "The input states no date" in item["properties"]["description"]
    assert not any("processing" in schema for schema in item["stac_extensions"])


def test_other_files_have_no_item(tmp_path):
    """The message says what items are made of."""
    Image.new("L", (4, 4)).save(tmp_path / "map.png")
    with pytest.raises(InputError, match="is no GeoTIFF"):
        item_of(tmp_path / "map.png")
    with pytest.raises(InputError, match="cannot read"):
        item_of(tmp_path / "none.tif")


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")  # odc-stac's use of affine
@pytest.mark.filterwarnings("ignore:The 'stac_validator' package:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The 'shapely.ops.transform:DeprecationWarning")  # and of shapely
def test_a_folder_becomes_a_collection_that_odc_loads(tmp_path, capsys):
    """Pixels and coordinate system are those of the file; a second run changes nothing but what was replaced."""
    odc = pytest.importorskip("odc.stac")
    folder = tmp_path / "maps"
    folder.mkdir()
    for name, x in (("a", 500000), ("b", 502400)):
        write(
            folder / f"{name}.tif", georeference=Georeference(crs="EPSG:32633", transform=(30, 0, x, 0, -30, 5300040))
        )
    write_item(folder / "a.tif", inputs=["scene.tif"])
    assert main(["stac", str(folder), "--id", "floods"]) == 0
    assert capsys.readouterr().out == f"{folder}/collection.json\n"
    made = pystac.Collection.from_file(str(folder / "collection.json"))
    content = json.loads((folder / "collection.json").read_text())
    check(content)
    assert (content["id"], content["extent"]["temporal"]["interval"][0]) == (
        "floods",
        ["2024-06-01T10:00:00Z", "2024-06-11T10:00:00Z"],
    )
    items = list(made.get_items())
    assert [(item.id, item.collection_id) for item in items] == [("a", "floods"), ("b", "floods")]
    assert accepted(folder / "collection.json")
    for name in ("a", "b"):
        assert accepted(folder / f"{name}.json")
        item = json.loads((folder / f"{name}.json").read_text())
        check(item)
        with Image.open(folder / item["assets"]["thumbnail"]["href"]) as picture:
            assert picture.size == (80, 90)
    assert [link.target for link in items[0].get_links("derived_from")][-1] == "scene.tif"
    loaded = odc.load(items[:1], bands=["data"])
    np.testing.assert_array_equal(loaded["data"].values[0], ARRAY[0])
    assert loaded.odc.crs.epsg == 32633
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    collection(folder, id="floods")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    write(folder / "b.tif", metadata={**TAGS, "MMOUT_MODEL": "fire"})
    collection(folder, id="floods")
    assert "fire" in (folder / "b.json").read_text()


def test_a_result_in_a_bucket_has_its_item_there(bucket, tmp_path):  # noqa: F811
    """The item and the thumbnail are objects beside the GeoTIFF, and the checksum is that of the object."""
    content = write(tmp_path / "map.tif").read_bytes()
    put(f"{bucket}maps/map.tif", content)
    write_item(f"{bucket}maps/map.tif", inputs=["s3://scenes/a.tif"])
    objects, _ = held(bucket)
    assert objects.keys() == {"maps/map.tif", "maps/map.json", "maps/map-thumbnail.png"}
    item = json.loads(objects["maps/map.json"])
    assert item["assets"]["data"]["file:checksum"] == "1220" + hashlib.sha256(content).hexdigest()
    assert item["assets"]["data"]["href"] == "./map.tif"
    assert item["links"][-1] == {"rel": "derived_from", "href": "s3://scenes/a.tif"}


def test_a_folder_in_a_bucket_becomes_a_collection(bucket, tmp_path, capsys):  # noqa: F811
    """What a cluster run wrote below an address is listed with its subfolders, and only new files get items."""
    content = write(tmp_path / "map.tif").read_bytes()
    for name in ("a.tif", "north/a.tif", "north/b.tif"):
        put(f"{bucket}maps/{name}", content)
    write_item(f"{bucket}maps/a.tif", inputs=["s3://scenes/a.tif"])
    assert main(["stac", f"{bucket}maps/", "--id", "floods"]) == 0
    assert capsys.readouterr().out == f"{bucket}maps/collection.json\n"
    objects, _ = held(bucket)
    collected = json.loads(objects["maps/collection.json"])
    check(collected)
    links = [link["href"] for link in collected["links"] if link["rel"] == "item"]
    assert links == ["./a.json", "./north/a.json", "./north/b.json"]
    items = [json.loads(objects[f"maps/{link[2:]}"]) for link in links]
    for item in items:
        check(item)
        assert item["assets"]["data"]["href"] == f"./{item['id'].rpartition('-')[2]}.tif"
        assert item["assets"]["thumbnail"]["href"].startswith("./")
    assert [(item["id"], item["collection"]) for item in items] == [
        ("a", "floods"),
        ("north-a", "floods"),
        ("north-b", "floods"),
    ]
    assert {link["rel"]: link["href"] for link in items[1]["links"]}["collection"] == "../collection.json"
    assert {link["rel"]: link["href"] for link in items[0]["links"]}["derived_from"] == "s3://scenes/a.tif"
    collection(f"{bucket}maps", id="floods")
    assert held(bucket)[0] == objects
    with pytest.raises(InputError, match="has no objects below it"):
        collection(f"{bucket}none/")


def test_a_collection_takes_no_items_of_another_and_has_each_id_once(tmp_path):
    """The collection of a subfolder keeps its items, and two files whose items would have one id are named."""
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "b.tif")
    collection(tmp_path / "a")
    before = (tmp_path / "a" / "b.json").read_bytes()
    with pytest.raises(InputError, match=r"b\.json is an item of the collection .*a/collection\.json"):
        collection(tmp_path)
    assert (tmp_path / "a" / "b.json").read_bytes() == before
    (tmp_path / "a" / "collection.json").unlink()
    assert [item.id for item in collection(tmp_path).get_items()] == ["a-b"]
    write(tmp_path / "a-b.tif")
    with pytest.raises(InputError, match=r"the items of .*a-b\.tif and .*b\.tif would have the same id, 'a-b'"):
        collection(tmp_path)


def test_the_extra_is_named_if_it_is_missing(tmp_path, monkeypatch):
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "pystac", None)
    with pytest.raises(OptionError, match=r"pip install \"vllm-mmout\[stac\]\""):
        item_of(write(tmp_path / "map.tif"))


def test_other_json_is_not_overwritten(tmp_path):
    """A file that is no item of its GeoTIFF is an error, and so is a folder without results."""
    with pytest.raises(InputError, match="no folder with GeoTIFFs"):
        collection(tmp_path)
    write(tmp_path / "map.tif")
    (tmp_path / "map.json").write_text('{"mine": 1}')
    with pytest.raises(InputError, match=r"map\.json is no STAC item of map\.tif"):
        collection(tmp_path)
    assert (tmp_path / "map.json").read_text() == '{"mine": 1}'


FOREIGN = {
    "map.json": ('[{"mine": 1}]', r"map\.json is no STAC item of map\.tif"),
    "collection.json": ('{"mine": 1}', r"collection\.json is no STAC collection"),
    "collection.tif": (None, r"the item of .*collection\.tif would be collection\.json"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_collection_overwrites_no_other_file(tmp_path, name):
    """Nothing is written if an item or the collection would replace a file that is something else."""
    content, message = FOREIGN[name]
    write(tmp_path / "map.tif")
    if content is None:
        write(tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=message):
        collection(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_fields_of_a_collection_are_not_lost(tmp_path):
    """The collection of another author is named with what it has besides."""
    write(tmp_path / "map.tif")
    collection(tmp_path)
    path = tmp_path / "collection.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "providers": []}))
    with pytest.raises(InputError, match="has fields that would be lost: providers"):
        collection(tmp_path)


def test_names_with_signs_of_addresses_are_encoded(tmp_path):
    """In an address # and ? begin other parts, so they are written as %23 and %3F, which reading understands."""
    write(tmp_path / "a#1?.tif")
    made = collection(tmp_path)
    assert [link.href for link in made.get_item_links()] == ["./a%231%3F.json"]
    item = json.loads((tmp_path / "a#1?.json").read_text())
    assert [asset["href"] for asset in item["assets"].values()] == ["./a%231%3F.tif", "./a%231%3F-thumbnail.png"]
    assert Document({}, f"{tmp_path}/a#1?.json").resolve(item["assets"]["data"]["href"]) == f"{tmp_path}/a#1?.tif"
