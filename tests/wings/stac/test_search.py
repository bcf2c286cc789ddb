"""Searches of static catalogues and of an API, and what is refused there."""

from __future__ import annotations

import json

import pytest
from http_server import a_running_server, a_server  # noqa: F401 - fixtures
from stac_catalogue import DAYS, catalogue, item_path

from vllm_mmout.cli import main
from vllm_mmout.errors import InputError, OptionError

pystac = pytest.importorskip("pystac")
from vllm_mmout.wings.stac.public import mosaics, search  # noqa: E402

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A static catalogue, which no test changes."""
    return catalogue(tmp_path_factory.mktemp("catalogue"))


def found(root, **conditions):
    """Return the ids of the items that a search finds."""
    return [item.id for item in search(str(root), **conditions)]


def test_collections_dates_and_places_choose_items(root):
    """Items come in the order of their dates."""
    assert len(found(root)) == 9
    assert found(root, collections="hls") == [f"HLS.S30.32TQM.{day}" for day in DAYS]
    first = ["S2A_32TQM_2024-06-01", "S2A_33TUL_2024-06-01"]
    assert found(root, collections=["sentinel-2"], datetime="2024-06-01") == first
    assert len(found(root, datetime="2024-06-11/..")) == 6
    assert len(found(root, datetime="2024-06")) == 9
    assert found(root, ids=[first[0]]) == [first[0]]
    item = json.loads(item_path(root, "sentinel-2", first[0]).read_text())
    assert found(root, datetime="2024-06-01", collections="sentinel-2", bbox=item["bbox"])[0] == first[0]
    assert found(root, datetime="2024-06-01", collections="sentinel-2", aoi=item["geometry"])[0] == first[0]
    with pytest.raises(InputError, match=r"no item of .* matches .*bbox=\[0.0, 1.0, 2.0, 3.0\]"):
        found(root, bbox=(0, 1, 2, 3))
    with pytest.raises(InputError, match="more than 2 items"):
        found(root, max_items=2)


def test_items_of_a_day_are_one_mosaic(root, monkeypatch):
    """There is a mosaic for each day, with the options that are given; an undated item is refused."""
    monkeypatch.setattr("vllm_mmout.Mosaic", lambda items, **options: (items, options))
    made = mosaics(search(str(root), collections="sentinel-2"), order="first")
    assert [([item.id for item in items], options) for items, options in made] == [
        ([f"S2A_{tile}_{day}" for tile in ("32TQM", "33TUL")], {"order": "first"}) for day in DAYS
    ]
    (item,) = search(str(root), collections="hls", datetime=DAYS[0])
    item.datetime, item.properties["start_datetime"], item.properties["end_datetime"] = None, DAYS[0], DAYS[1]
    with pytest.raises(InputError, match="is not of a single day"):
        mosaics([item])


def test_wrong_conditions_are_refused(root):
    """The message names the argument."""
    with pytest.raises(OptionError, match="datetime must be a date"):
        found(root, datetime="yesterday")
    with pytest.raises(OptionError, match="bbox must be"):
        found(root, bbox=(0, 95, 1, 99))
    with pytest.raises(OptionError, match="bbox and aoi are both given"):
        found(root, bbox=(0, 0, 1, 1), aoi={"type": "Point", "coordinates": [0, 0]})
    with pytest.raises(OptionError, match="query"):
        found(root, query={"eo:cloud_cover": {"lt": 20}})


def test_links_in_a_cycle_end(tmp_path):
    """Each document is read once."""
    links = [{"rel": "child", "href": "b.json"}, {"rel": "child", "href": "./a.json"}]
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps({"type": "Catalog", "id": name, "links": links}))
    with pytest.raises(InputError, match="no item of"):
        found(tmp_path / "a.json")


def test_a_catalogue_on_a_server_cannot_link_to_local_files(server, tmp_path):
    """A link of rel=child to a path of this machine is refused."""
    (tmp_path / "secret.json").write_text("{}")
    links = [{"rel": "child", "href": f"{tmp_path}/secret.json"}]
    catalog = {"type": "Catalog", "id": "a", "stac_version": "1.0.0", "description": "a", "links": links}
    address = server.serve("/catalog.json", json.dumps(catalog).encode())
    with pytest.raises(InputError, match="that of a local file"):
        found(address)


def test_an_api_searches_for_itself(server, root):
    """The conditions are sent to the API, whose items come back; its errors are named."""
    link = {"rel": "search", "href": f"{server.address}/search", "type": "application/geo+json", "method": "GET"}
    classes = ["https://api.stacspec.org/v1.0.0/core", "https://api.stacspec.org/v1.0.0/item-search"]
    landing = {"type": "Catalog", "id": "api", "stac_version": "1.0.0", "description": "an API", "conformsTo": classes}
    item = json.loads(item_path(root, "hls", f"HLS.S30.32TQM.{DAYS[0]}").read_text())
    page = {"type": "FeatureCollection", "features": [item], "links": []}
    address = server.serve("/api", json.dumps({**landing, "links": [link]}).encode(), ranges=False)
    server.serve("/search", json.dumps(page).encode(), ranges=False)
    assert found(address, collections="hls", datetime="2024-06", method="GET") == [item["id"]]
    assert server.of("/search")[0].path.startswith("/search?")
    assert "collections=hls" in server.of("/search")[0].path
    server.serve("/search", b"no JSON", ranges=False)
    with pytest.raises(InputError, match=r"the search of .* failed"):
        found(address, method="GET")


def test_a_box_off_the_earth_is_refused(root, tmp_path, capsys):
    """PROJ would convert such numbers for minutes."""
    box = ["--bbox", "0,0,1e30,1e30", "--bbox-crs", "EPSG:3857"]
    assert main(["run", "water-index", str(root), "--stac", *box, "-o", f"{tmp_path}/out/"]) == 2
    assert "bbox must lie on Earth" in capsys.readouterr().err
