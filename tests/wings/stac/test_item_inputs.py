"""STAC items as inputs: their bands, what they state beside the files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
from several_files import mapper
from stac_catalogue import BROKEN, catalogue, item_path, pixels, write_band

from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.catalogued import expanded, with_catalogued
from vllm_mmout.params import OutputParams

pystac = pytest.importorskip("pystac")
pytestmark = pytest.mark.heavy
NAME, TILE, DAY = "S2A_32TQM_2024-06-01", "32TQM", "2024-06-01"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A static catalogue, which no test changes."""
    return catalogue(tmp_path_factory.mktemp("catalogue"))


def seen(data, **options):
    """Return what a model of six bands gets from an input."""
    model = mapper("blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2")
    return model(with_catalogued(data), OutputParams(**options))


def changed(root, **fields):
    """Return an item of the catalogue as a dict with fields of its properties changed, and absolute addresses."""
    path = item_path(root, "sentinel-2", NAME)
    item = json.loads(path.read_text())
    for asset in item["assets"].values():
        asset["href"] = str(path.parent / asset["href"])
    item["properties"].update(fields)
    return item


@pytest.mark.parametrize("form", ["path", "text", "file address", "pystac", "dict", "collection"])
def test_an_item_in_any_form_is_read_as_its_files_are(root, form):
    """The pixels, the mask of nodata, the coordinate system and the date are those of the item's files."""
    path = item_path(root, "sentinel-2", NAME)
    item = {
        "path": path,
        "text": str(path),
        "file address": path.as_uri(),
        "pystac": pystac.Item.from_file(str(path)),
        "dict": changed(root),
        "collection": {"type": "FeatureCollection", "features": [changed(root)]},
    }[form]
    mapped = seen(item)
    array = pixels(TILE, DAY)
    np.testing.assert_array_equal(mapped.tensors["pixel_values"], array)
    np.testing.assert_array_equal(mapped.source.valid, (array != 0).all(axis=0))
    assert mapped.source.georeference.crs == "EPSG:32632"
    assert mapped.source.metadata["ACQUISITIONDATETIME"] == DAY
    assert any("states nodata 0, which its files do not" in text for text in mapped.source.assumed)


def test_bands_of_version_1_1_are_read(root):
    """An HLS item in STAC 1.1, whose assets have band names as keys, gives the same bands by their common names."""
    mapped = seen(item_path(root, "hls", f"HLS.S30.{TILE}.{DAY}"), scale="file")
    np.testing.assert_allclose(mapped.tensors["pixel_values"], pixels(TILE, DAY) * np.float32(1e-4), rtol=1e-6)


def test_a_broken_asset_is_named(root):
    """The message has the asset and the item."""
    with pytest.raises(InputError, match=f"asset 'red' of STAC item {BROKEN}.*HTML"):
        seen(item_path(root, "sentinel-2", BROKEN))


STATED = {
    "coordinate system": {"proj:epsg": 32633},
    "size": {"proj:shape": [48, 49]},
    "transform": {"proj:transform": [30, 0, 699990, 0, -30, 5300040]},
}


@pytest.mark.parametrize("fact", STATED)
def test_a_place_that_contradicts_the_file_is_refused(root, fact):
    """The message has both statements."""
    with pytest.raises(InputError, match=rf"the item states the {fact} .*, and the file the {fact} "):
        seen(changed(root, **STATED[fact]))


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"nodata": 5}, r"states nodata 0(\.0)?, and the file nodata 5"),
        ({"scales": [0.5]}, r"states scale and offset 0\.0001 and 0, and the file scale and offset 0\.5 and 0"),
        ({"DATE_ACQUIRED": "2021-01-01"}, "states the date 2024-06-01, and the file the date 2021-01-01"),
    ],
)
def test_numbers_that_contradict_the_file_are_refused(root, tmp_path, tags, message):
    """Nodata, scale and date of a file must be those of its item, and the message has both."""
    path = tmp_path / "red.tif"
    write_band(path, pixels(TILE, DAY)[2], TILE, **{k: v for k, v in tags.items() if k == "nodata"})
    with rasterio.open(path, "r+") as file:
        file.scales = tags.get("scales", [1.0])
        file.update_tags(**{k: v for k, v in tags.items() if k.isupper()})
    item = changed(root)
    item["assets"]["red"]["href"] = str(path)
    with pytest.raises(InputError, match=message):
        seen(item)


def test_a_place_that_only_the_item_states_is_used(root, tmp_path):
    """A file without a coordinate system gets that of the item, and the result says so."""
    item = changed(root)
    for key, band in zip(("blue", "green", "red", "nir08", "swir16", "swir22"), pixels(TILE, DAY), strict=True):
        write_band(tmp_path / f"{key}.tif", band, TILE, crs=None)
        item["assets"][key]["href"] = str(tmp_path / f"{key}.tif")
    mapped = seen(item)
    assert mapped.source.georeference.crs == "EPSG:32632"
    assert any("states its crs (EPSG:32632), which its files do not" in text for text in mapped.source.assumed)


def test_one_of_several_files_of_a_band_is_chosen_and_named(root):
    """A GeoTIFF is taken before a JPEG 2000 file of the same band."""
    item = changed(root)
    item["assets"]["red-jp2"] = {**item["assets"]["red"], "href": "/no/such.jp2", "type": "image/jp2"}
    sentence = f"STAC item {NAME}: asset 'red' was taken; 'red-jp2' has the same band."
    assert sentence in seen(item).source.assumed


@pytest.mark.parametrize(("applied", "moved"), [(True, 0), (False, -1000)])
def test_the_offset_of_sentinel_2_is_used_as_in_its_products(root, applied, moved):
    """Counts of newer products become older counts, unless the item says that this was done already."""
    item = changed(root, **{"earthsearch:boa_offset_applied": applied})
    for asset in item["assets"].values():
        for band in asset.get("raster:bands", ()):
            band["offset"] = -0.1
    array = seen(item).tensors["pixel_values"].astype(int)
    valid = (pixels(TILE, DAY) > 0).all(axis=0)
    expected = np.maximum(pixels(TILE, DAY).astype(int) + moved, 0)
    np.testing.assert_array_equal(array[:, valid], expected[:, valid])


def test_items_of_three_dates_are_one_input_in_their_order(root):
    """A model of three dates gets a band of all dates after another; one item is too few."""
    model = mapper("red", "narrow NIR", num_frames=3)
    days = ("2024-06-01", "2024-06-11", "2024-06-21")
    items = [item_path(root, "sentinel-2", f"S2A_{TILE}_{day}") for day in days]
    tensor = model(with_catalogued(items), OutputParams()).tensors["pixel_values"]
    for number, day in enumerate(days):
        np.testing.assert_array_equal(tensor[:, number], pixels(TILE, day)[[2, 3]])
    with pytest.raises(InputError, match=r"the input has 1 date, .* takes 3"):
        model(with_catalogued(items[0]), OutputParams())


def test_a_collection_is_as_many_inputs_as_it_has_items(root):
    """Each item is an input of its own, and one page of several is refused."""
    items = pystac.ItemCollection([pystac.Item.from_file(str(item_path(root, "sentinel-2", NAME)))] * 2)
    assert [seen(each).tensors["pixel_values"].shape for each in expanded(items)] == [(6, 48, 48)] * 2
    assert list(expanded("scene.tif")) == ["scene.tif"]
    page = {"type": "FeatureCollection", "features": [changed(root)], "links": [{"rel": "next", "href": "https://a/"}]}
    with pytest.raises(InputError, match="one page of several"):
        seen(page)


def remote(item, **asset):
    """Return an item as a server sends it, with one asset changed."""
    item["links"] = [{"rel": "self", "href": "https://example.org/items/a.json"}]
    item["assets"]["red"].update(asset)
    return item


def crowded(item):
    """Return an item of more assets than are read."""
    item["assets"] = {str(number): {"href": "a.tif"} for number in range(1001)}
    return item


HOSTILE = {
    "a path from a server": (lambda item: remote(item, href="/etc/passwd.tif"), "that of a local file"),
    "a file address": (lambda item: remote(item, href="file:///etc/passwd.tif"), "that of a local file"),
    "a network path": (lambda item: remote(item, href="//example.com/x.tif"), "that of a local file"),
    "a name of GDAL": (lambda item: remote(item, href="/vsicurl/http://10.0.0.1/x.tif"), "nothing that an item's file"),
    "another scheme": (lambda item: remote(item, href="ftp://example.org/x.tif"), "nothing that an item's file"),
    "a relative path": (lambda item: item["assets"]["red"].update(href="red.tif") or item, "relative, and the address"),
    "too many assets": (crowded, "1001 assets, and at most 1000"),
    "no assets": (lambda item: {**item, "assets": []}, "assets must be an object"),
    "no properties": (lambda item: {**item, "properties": None}, "properties must be an object"),
    "a wrong date": (lambda item: {**item, "properties": {"datetime": "soon"}}, "is no date"),
    "a wrong shape": (lambda item: {**item, "properties": {"proj:shape": [-1, 10**30]}}, "proj:shape must be"),
    "a flat pixel": (
        lambda item: {**item, "properties": {"proj:transform": [0, 0, 0, 0, 0, 0]}},
        "pixels without an area",
    ),
    "an infinite scale": (
        lambda item: item["assets"]["red"].update({"raster:bands": [{"scale": float("inf")}]}) or item,
        "scale must be a number",
    ),
    "two counts": (
        lambda item: item["assets"]["red"].update({"raster:bands": [{}, {}]}) or item,
        "different numbers of bands: 1 in eo:bands, 2 in raster:bands",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_item_is_refused(root, kind):
    """The message names the item and the fault, and no file is opened."""
    change, message = HOSTILE[kind]
    item = change(changed(root))
    if "path" in kind or "GDAL" in kind or "address" in kind or "scheme" in kind:
        item["assets"] = {"red": item["assets"]["red"]}
    with pytest.raises(InputError, match=message) as raised:
        seen(item)
    assert str(raised.value).startswith(f"STAC item {NAME}")


@pytest.mark.parametrize("text", ['{"a": ', "[" * 5 + "{", '{"a":' * 200_000])
def test_a_damaged_document_is_refused_or_left_to_others(tmp_path, text):
    """JSON that ends early or is nested too deep is an error, and other data is none of ours."""
    path = Path(tmp_path / "item.json")
    path.write_text(text)
    if text.startswith("["):
        assert with_catalogued(path) is path
        return
    with pytest.raises(InputError, match="no valid JSON"):
        with_catalogued(path)


MALFORMED = {
    "roles": lambda item: item["assets"]["red"].update(roles=5),
    "instruments": lambda item: item["properties"].update(instruments=5, datetime=7),
    "transform": lambda item: item["properties"].update({"proj:transform": [10**400, 0, 0, 0, 1, 0]}),
    "scale": lambda item: item["assets"]["red"].update({"raster:bands": [{"scale": 10**400}]}),
    "nodata": lambda item: item["assets"]["red"].update({"raster:bands": [{"nodata": True}]}),
    "moment": lambda item: item["properties"].update(datetime="0001-01-01T00:00:00+14:00"),
    "href": lambda item: item["assets"]["red"].update(href="x://["),
    "self link": lambda item: item.update(links=[{"rel": "self", "href": "https://["}]),
    "epsg": lambda item: item["properties"].update({"proj:epsg": True}),
    "wkt": lambda item: item["properties"].update({"proj:wkt2": 5}),
}


@pytest.mark.parametrize("part", MALFORMED)
def test_a_malformed_item_is_an_error_of_the_input(root, part):
    """The message names the item, and no error of Python reaches the caller."""
    item = changed(root)
    if part == "self link":
        item["assets"]["red"]["href"] = "red.tif"
    MALFORMED[part](item)
    with pytest.raises(InputError, match=NAME):
        seen(item)


def test_dates_at_the_ends_of_the_calendar_and_sizes_of_any_length(root):
    """An early date is compared with that of the file; an asset with a wrong gsd is not the finest."""
    item = changed(root, datetime="0001-01-01T00:00:00Z")
    item["assets"]["red"]["gsd"] = 10**400
    np.testing.assert_array_equal(seen(item).tensors["pixel_values"], pixels(TILE, DAY))


def test_an_entry_that_is_no_item_fails_alone(root):
    """The others of a collection are read."""
    first, second = expanded({"type": "FeatureCollection", "features": [changed(root), 5]})
    np.testing.assert_array_equal(seen(first).tensors["pixel_values"], pixels(TILE, DAY))
    with pytest.raises(InputError, match="an entry of the item collection is no STAC item"):
        seen(second)


def test_a_coordinate_system_that_proj_does_not_know_is_refused(root, tmp_path):
    """The message names the item, which alone states it."""
    item = changed(root, **{"proj:epsg": 999999})
    write_band(tmp_path / "red.tif", pixels(TILE, DAY)[2], TILE, crs=None)
    item["assets"]["red"]["href"] = str(tmp_path / "red.tif")
    item["assets"] = {"red": item["assets"]["red"]}
    with pytest.raises(InputError, match=f"asset 'red' of STAC item {NAME}: the item states a coordinate system that"):
        mapper("red")(with_catalogued(item), OutputParams())


def of_product(root, fields, **bands):
    """Return an item of a Sentinel-2 product whose bands state ``bands``."""
    item = changed(root, **{"s2:product_type": "S2MSI2A", **fields})
    for asset in item["assets"].values():
        asset["raster:bands"] = [{"nodata": 0, **bands}] * ("eo:bands" in asset and len(asset["eo:bands"]))
    return item


@pytest.mark.parametrize(
    ("fields", "bands", "moved", "said"),
    [
        ({"s2:processing_baseline": "05.10"}, {}, -1000, "stated by s2:processing_baseline 05.10 of the STAC item"),
        ({"s2:processing_baseline": "04.00"}, {"scale": 0.0001}, -1000, "-1000 was added to the counts"),
        ({"s2:processing_baseline": "05.10", "earthsearch:boa_offset_applied": True}, {}, 0, ""),
        ({"s2:processing_baseline": "03.01"}, {}, 0, ""),
        ({}, {}, 0, "it is unknown whether its counts are 1000 higher"),
        ({"s2:processing_baseline": "99.99"}, {}, 0, "it is unknown whether its counts are 1000 higher"),
        ({}, {"scale": 0.0001}, 0, "it is unknown whether its counts are 1000 higher"),
    ],
)
def test_the_baseline_of_sentinel_2_tells_the_offset(root, fields, bands, moved, said):
    """Counts of newer products become older counts if the item states no offset; without a baseline there is a note."""
    mapped = seen(of_product(root, fields, **bands))
    valid = (pixels(TILE, DAY) > 0).all(axis=0)
    expected = np.maximum(pixels(TILE, DAY).astype(int) + moved, 0)
    np.testing.assert_array_equal(mapped.tensors["pixel_values"].astype(int)[:, valid], expected[:, valid])
    notes = " ".join(mapped.source.assumed)
    assert said in notes
    assert bool(said) == ("1000" in notes)


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ({"s2:processing_baseline": "05.10"}, -1000),
        ({"s2:processing_baseline": "03.01"}, 0),
        ({"s2:processing_baseline": "05.10", "earthsearch:boa_offset_applied": True}, 0),
    ],
)
def test_sentinel_2_gives_reflectance_of_every_baseline(root, fields, moved):
    """With scale="file" the unit does not depend on the baseline, although no item states the scale."""
    mapped = seen(of_product(root, fields), scale="file")
    valid = (pixels(TILE, DAY) > 0).all(axis=0)
    expected = (pixels(TILE, DAY).astype(float) + moved) / 10000
    np.testing.assert_allclose(mapped.tensors["pixel_values"][:, valid], expected[:, valid], atol=1e-6)
    assert not any("scale" in note for note in mapped.source.assumed)


def test_bands_with_different_offsets_are_refused(root):
    """The message names one asset of each offset."""
    item = of_product(root, {})
    item["assets"]["red"]["raster:bands"] = [{"scale": 0.0001, "offset": -0.1}]
    with pytest.raises(InputError, match=r"asset 'blue'.* offset of 0 counts, and asset 'red'.* of -1000"):
        seen(item)
