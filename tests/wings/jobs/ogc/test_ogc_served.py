"""OGC API Processes of real servers: by OWSLib, from the landing page to the result, and with an API key."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from http_server import no_proxies
from pages import all_blocks
from scene_clients import ask, client, made, raster, wait_for
from scenes_for_tests import classes, pixels, write

rasterio = pytest.importorskip("rasterio", reason="it writes the scene")
owslib = pytest.importorskip("owslib.ogcapi.processes", reason="it is the client")
pytestmark = pytest.mark.engine
PLACE = {"crs": "EPSG:32614", "transform": rasterio.Affine(10, 0, 500_000, 0, -10, 3_000_000)}
KEY = {"Authorization": "Bearer secret"}
RESULTS = "http://www.opengis.net/def/rel/ogc/1.0/results"


@pytest.fixture(scope="module")
def array():
    """uint16 [6, 75, 90]."""
    return pixels(5)


@pytest.fixture(scope="module")
def scene(array, tmp_path_factory):
    """The same as a GeoTIFF in base64."""
    path = write(tmp_path_factory.mktemp("scene") / "scene.tif", array, **PLACE)
    return base64.b64encode(path.read_bytes()).decode()


@pytest.fixture
def proxies_left_out():
    """Requests that do not go by the proxies of the environment."""
    with no_proxies():
        yield


@pytest.fixture(autouse=True)
def _none_is_left(request):
    """Each test deletes its jobs."""
    yield
    for name in {"water_server", "guarded_server"} & {*request.fixturenames}:
        with client(base_url=request.getfixturevalue(name).url, headers=KEY) as asking:
            for job in made(asking.get("/ogc/jobs", params={"limit": 100}))["jobs"]:
                asking.delete(f"/ogc/jobs/{job['jobID']}")


def test_a_generic_client_finds_the_process_and_gets_its_result(water_server, scene, array, proxies_left_out):
    """OWSLib reads the landing page, the process and its inputs, executes it in both ways, and gets the map."""
    server = owslib.Processes(f"{water_server.url}/ogc")
    assert server.api()["openapi"] == "3.0.3"
    assert any(uri.endswith("/conf/core") for uri in server.conformance()["conformsTo"])
    (summary,) = server.processes()
    process = server.process(summary["id"])
    assert (process["id"], process["inputs"]["image"]["minOccurs"]) == ("water-index", 1)
    assert process["inputs"].keys() >= {"image", "tile", "bbox", "output"}
    assert process["inputs"]["output"]["schema"]["enum"][0] == "classes"
    (output,) = process["outputs"]

    inputs = {"image": {"value": scene, "mediaType": "image/tiff"}, "tile": 32}
    document = server.execute(process["id"], inputs)
    np.testing.assert_array_equal(raster(base64.b64decode(document[output]["value"])), classes(array))

    job = server.execute(process["id"], inputs, {output: {"transmissionMode": "reference"}}, async_=True)
    where = server.response_headers["location"]
    with client() as asking:
        job = wait_for(lambda: _finished(asking, where), "the job did not end")
        assert (job["status"], job["progress"]) == ("successful", 100)
        (href,) = [link["href"] for link in job["links"] if link["rel"] == RESULTS]
        address = made(asking.get(href))[output]["href"]
        assert address.startswith(f"{water_server.url}/v1/scenes/{job['jobID']}/content")
        np.testing.assert_array_equal(raster(asking.get(address).content), classes(array))
        assert asking.delete(where).json()["status"] == "dismissed"


def _finished(asking, where):
    job = made(asking.get(where))
    return job if job["status"] in ("successful", "failed") else None


def test_the_client_of_the_page(water_server, array, tmp_path, monkeypatch, proxies_left_out):
    """The Python of docs/ogc.md writes the map of the scene."""
    (block,) = [block for block in all_blocks("python") if block.page == "ogc.md"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo-output").mkdir()
    write(tmp_path / "demo-output/scene.tif", array, **PLACE)
    exec(block.text.replace("http://localhost:8000", water_server.url), {})  # noqa: S102 - the pages are our own
    np.testing.assert_array_equal(raster((tmp_path / "water.tif").read_bytes()), classes(array))


@pytest.mark.parametrize("mode", ["value", "reference"])
def test_several_kinds_of_result_of_a_mosaic(water_server, scene, array, mode):
    """The JSON of docs/ogc.md has a result for each kind in ``output``, sent by value or by reference."""
    (block,) = [block for block in all_blocks("json") if block.page == "ogc.md"]
    body = json.loads(block.text)
    body["inputs"] |= {"image": [{"value": scene}, {"value": scene}], "mosaic": "first"}
    body["outputs"] = {"segmentation": {"transmissionMode": mode}}
    answer = made(ask(water_server, "POST", "/ogc/processes/water-index/execution", json=body))
    assert answer.keys() == {"classes", "polygons", "areas"}
    if mode == "value":
        content = base64.b64decode(answer["classes"]["value"])
        assert (answer["polygons"]["value"]["type"], answer["areas"].keys()) == (
            "FeatureCollection",
            {"mediaType", "value"},
        )
    else:
        assert {tuple(result) for result in answer.values()} == {("href", "type")}
        with client() as asking:
            content = asking.get(answer["classes"]["href"]).raise_for_status().content
    np.testing.assert_array_equal(raster(content), classes(array))


def test_part_of_a_scene_by_the_bounding_box_of_the_standard(water_server, scene, array):
    """A box in degrees has the pixels that the same box has in the coordinates of the scene."""
    west, south, east, north = rasterio.warp.transform_bounds(
        PLACE["crs"], "OGC:CRS84", 500_100, 2_999_500, 500_500, 2_999_900
    )
    body = {"inputs": {"image": scene, "bbox": {"bbox": [west, south, east, north]}}}
    answer = ask(water_server, "POST", "/ogc/processes/water-index/execution", json=body).raise_for_status()
    with rasterio.MemoryFile(answer.content) as file, file.open() as opened:
        found, window = opened.read(), rasterio.windows.from_bounds(*opened.bounds, transform=PLACE["transform"])
    rows, cols = window.round_offsets().round_lengths().toslices()
    assert found.shape[1] >= 40
    np.testing.assert_array_equal(found, classes(array)[:, rows, cols])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/processes"),
        ("POST", "/processes/water-index/execution"),
        ("DELETE", "/jobs/x"),
        ("GET", "/x"),
    ],
)
def test_each_path_needs_the_key_of_the_server(guarded_server, method, path):
    """Without the key each path below /ogc answers 401, as an exception document."""
    answer = ask(guarded_server, method, f"/ogc{path}", content=b"{}")
    assert (answer.status_code, answer.json()["status"], answer.headers["www-authenticate"]) == (401, 401, "Bearer")
    assert answer.json()["type"] == "about:blank"


def test_a_server_with_limits_says_so_in_exception_documents(guarded_server):
    """Too large a body is refused in the standard's form, and so is a file that the server may not fetch."""
    key = {**KEY, "Content-Type": "application/json"}
    path = "/ogc/processes/water-index/execution"
    answer = ask(guarded_server, "POST", path, content=b" " * (2 * 2**20 + 1), headers=key)
    assert (answer.status_code, answer.json()["status"]) == (413, 413)
    body = {"inputs": {"image": {"href": "http://10.0.0.1/a.tif"}}, "outputs": {"segmentation": {}}}
    answer = ask(guarded_server, "POST", path, json=body, headers=key)
    assert (answer.status_code, answer.json()["type"]) == (400, "InvalidParameterValue")
    assert "10.0.0.1" in answer.json()["detail"]
