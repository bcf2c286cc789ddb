"""``/v1/scenes`` of a real server: the life of jobs, and what they give, by rasterio, numpy and Pillow."""

from __future__ import annotations

import base64
import io
import threading
import time

import numpy as np
import pytest
from asked_server import open_files
from http_server import no_proxies, running
from PIL import Image
from scene_clients import PALETTE, client, ended, listed, long_scene, made, raster, wait_for
from scene_servers import files_of
from scenes_for_tests import classes, counted, pixels, probabilities, with_a_hole, write

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = pytest.mark.engine
PLACE = {"crs": "EPSG:32614", "transform": rasterio.Affine(10, 0, 500_000, 0, -10, 3_000_000), "nodata": 0}
TILES = 63 * 63
FINISHED = ("completed", "failed")
ORDER = ("queued", "in_progress", *FINISHED)


@pytest.fixture(scope="module")
def array():
    """uint16 [6, 300, 400] with a hole of nodata."""
    return with_a_hole()


@pytest.fixture(scope="module")
def expected(array):
    """Its classes, 255 in the hole."""
    return classes(array, (array != 0).all(axis=0))


@pytest.fixture(scope="module")
def scene(array, tmp_path_factory):
    """The same as the bytes of a GeoTIFF."""
    return write(tmp_path_factory.mktemp("scene") / "scene.tif", array, **PLACE).read_bytes()


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """The bytes of a scene of 484 tiles of 16 pixels, and its classes."""
    return long_scene(tmp_path_factory.mktemp("slow") / "slow.tif", 350)


@pytest.fixture(scope="module")
def server(water_server):
    """A client of the server."""
    with client(base_url=water_server.url) as asking:
        yield asking


@pytest.fixture(autouse=True)
def _none_is_left(request):
    """Each test deletes its jobs."""
    yield
    if "server" in request.fixturenames:
        asking = request.getfixturevalue("server")
        for job in made(asking.get("/v1/scenes", params={"limit": 100}))["data"]:
            asking.delete(f"/v1/scenes/{job['id']}")


def send(asking, data, name="scene.tif", **fields):
    """Make a job of one file."""
    answer = asking.post("/v1/scenes", files={"image": (name, data)}, data=fields)
    return made(answer)


def done(asking, job):
    """A job when it is finished."""
    return ended(asking, [job["id"]])[job["id"]]


def get(asking, job, below="", **query):
    """An answer of one job's."""
    return asking.get(f"/v1/scenes/{job['id']}{below}", params=query)


def refused(answer, status, words, param):
    """An error as it should be."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, status, param), answer.text
    assert words in error["message"], error["message"]
    return error


def test_the_life_of_a_job(server, water_server, tmp_path):
    """Its status only goes forward, its tiles and its pixels that are seen never fall; the result is that of numpy."""
    content, expected = long_scene(tmp_path / "slow.tif", 1000)
    before, previews = int(time.time()), {}
    seen = [send(server, content, "slow scene.tif", tile="16")]
    assert seen[0]["status"] == "queued"
    first = get(server, seen[0], "/content", variant="preview")
    if first.status_code == 409:
        refused(first, 409, "has no preview yet; ask again", None)
        assert first.headers["retry-after"] == "1"
    while seen[-1]["status"] not in FINISHED:
        with water_server.stopped_engine():  # between two looks the engine has time for some tiles, not for all
            seen.append(made(get(server, seen[0])))
            answer = get(server, seen[0], "/content", variant="preview")
        if answer.status_code == 200 and seen[-1]["status"] not in FINISHED:
            previews.setdefault(answer.headers["etag"], answer)
    last = seen[-1]
    assert last["status"] == "completed", last
    fixed = ("id", "object", "model", "name", "created_at")
    assert all({name: one[name] for name in fixed} == {name: last[name] for name in fixed} for one in seen)
    assert (last["object"], last["model"], last["name"]) == ("scene", "water-index", "slow scene.tif")
    ranks = [ORDER.index(one["status"]) for one in seen]
    assert ranks == sorted(ranks)
    assert "in_progress" in {one["status"] for one in seen}
    done_tiles = [one["tiles"]["done"] for one in seen if one["tiles"]]
    assert done_tiles == sorted(done_tiles)
    assert any(0 < done < TILES for done in done_tiles)
    assert {one["tiles"]["total"] for one in seen if one["tiles"]} == {TILES}
    for one in seen:
        running = one["status"] != "completed"
        tiles = one["tiles"]
        whole = 100 * tiles["done"] // tiles["total"] if tiles else 0
        assert one["progress"] == (min(99, whole) if running else 100)
        assert (one["outputs"] == []) is running
        assert one["error"] is None
        assert (one["started_at"] is None) == (one["status"] == "queued")
        assert (one["completed_at"] is None) is running
    assert before <= last["created_at"] <= last["started_at"] <= last["completed_at"] <= time.time()
    assert last["expires_at"] == pytest.approx(last["completed_at"] + 3600, abs=1)
    answer = get(server, last, "/content")
    np.testing.assert_array_equal(raster(answer.content), expected)
    _grows(list(previews.values()), get(server, last, "/content", variant="preview"), expected)
    assert made(server.delete(f"/v1/scenes/{last['id']}")) == {
        "id": last["id"],
        "object": "scene.deleted",
        "deleted": True,
    }
    for below in ("", "/content", "/pixel", "/figure"):
        refused(get(server, last, below, row=0, col=0), 404, "there is no such job", "scene_id")
    refused(server.delete(f"/v1/scenes/{last['id']}"), 404, "there is no such job", "scene_id")


def _grows(previews, last, expected):
    """Check that pixels that are seen have the colour of their class and never go, and that all are seen at the end."""
    colours, shares = np.array(PALETTE, np.uint8)[expected[0]], []
    for answer in previews:
        shown = picture(answer.content)
        assert shown.shape == colours.shape
        seen = shown[..., 3] != 0
        np.testing.assert_array_equal(shown[seen], colours[seen])
        assert (shown[~seen] == 0).all()
        assert answer.headers["content-type"] == "image/png"
        shares.append(seen.mean())
    assert len(set(shares)) >= 2
    assert shares == sorted(shares)
    assert 0 < shares[0] < 1
    np.testing.assert_array_equal(picture(last.content), colours)
    assert last.headers["content-disposition"] == 'inline; filename="slow_scene.png"'


@pytest.mark.parametrize("options", [{}, {"tile": "96", "overlap": "16"}])
def test_the_result(server, scene, array, expected, options):
    """A GeoTIFF on the place of the input, with what is said of it in the job and in the headers."""
    job = done(server, send(server, scene, **options))
    answer = get(server, job, "/content")
    (output,) = job["outputs"]
    assert (output["processor"], output["output_format"], output["size"]) == ("segmentation", "tiff", "400x300")
    assert output["bytes"] == len(answer.content) == int(answer.headers["content-length"])
    assert output["media_type"] == answer.headers["content-type"] == "image/tiff"
    assert answer.headers["content-disposition"] == 'inline; filename="scene.tif"'
    with rasterio.MemoryFile(answer.content) as memory, memory.open() as file:
        np.testing.assert_array_equal(file.read(), expected)
        assert (file.crs, file.transform, file.nodata) == (PLACE["crs"], PLACE["transform"], 255)
        assert {number: file.colormap(1)[number] for number in range(2)} == dict(enumerate(PALETTE))
    valid = int((expected != 255).sum())
    assert [(row["id"], row["name"]) for row in output["classes"]] == [(0, "land"), (1, "water")]
    for row in output["classes"]:
        count = int((expected == row["id"]).sum())
        assert (row["pixels"], row["share"]) == (count, count / valid)
        assert row["color"] == "#{:02x}{:02x}{:02x}".format(*PALETTE[row["id"]])
        assert row["area_m2"] == pytest.approx(100 * count, rel=2e-3)  # by the scale of UTM
    tiles = counted(300, int(options.get("tile", 512)), int(options.get("overlap", 0)))
    tiles *= counted(400, int(options.get("tile", 512)), int(options.get("overlap", 0)))
    assert job["tiles"] == {"done": tiles, "total": tiles}


def data_url(content):
    """A file as text."""
    return f"data:image/tiff;base64,{base64.b64encode(content).decode()}"


def test_json_and_forms_of_addresses(server, scene, expected):
    """The same job comes of JSON, in both of its forms, and of a form with text."""
    url = data_url(scene)
    for sent in (
        {"json": {"image": url}},
        {"json": {"images": [{"image_url": url}], "tile": 64, "model": "water-index"}},
        {"data": {"image": url, "tile": "64"}},
    ):
        job = done(server, made(server.post("/v1/scenes", **sent)))
        np.testing.assert_array_equal(raster(get(server, job, "/content").content), expected)
        assert job["name"] == f"<data URL of {len(scene)} bytes>"


def test_several_files(server, array, expected, tmp_path):
    """A file a band is one input."""
    bands = [write(tmp_path / f"part{band}.tif", array[[band]], **PLACE).read_bytes() for band in range(6)]
    files = [("image", (f"part{band}.tif", content)) for band, content in enumerate(bands)]
    job = done(server, made(server.post("/v1/scenes", files=files)))
    assert job["name"] == "part0.tif"
    np.testing.assert_array_equal(raster(get(server, job, "/content").content), expected)


def test_addresses_are_fetched_when_the_job_runs(guarded_server, files, array):
    """What the server may fetch becomes a result; what it may not, or is not there, a job that says why."""
    key = {"Authorization": "Bearer secret"}
    small = files.serve("/small.tif", scene_of(array[:, :30, :40]))
    with client(base_url=guarded_server.url, headers=key) as guarded:
        job = done(guarded, made(guarded.post("/v1/scenes", json={"image": small})))
        assert (job["status"], job["name"]) == ("completed", "small.tif"), job
        np.testing.assert_array_equal(raster(get(guarded, job, "/content").content), classes(array[:, :30, :40]))
        for address, words in ((f"{files.address}/none.tif", "404"), ("https://192.0.2.1/a.tif", "192.0.2.1")):
            one = made(guarded.post("/v1/scenes", json={"image": address}))
            job = done(guarded, one)
            assert job["status"] == "failed"
            assert job["error"]["code"] == "BadRequestError"
            assert words in job["error"]["message"]


@pytest.fixture
def files():
    """A server of files over http."""
    with no_proxies(), running() as told:
        yield told


def scene_of(array):
    """The bytes of a GeoTIFF."""
    with rasterio.MemoryFile() as memory:
        shape = {"count": len(array), "height": array.shape[1], "width": array.shape[2], "dtype": array.dtype}
        with memory.open(driver="GTiff", **shape, **PLACE) as file:
            file.write(array)
        return memory.read()


def test_what_is_refused_at_once(server, scene):
    """What is wrong with a request is its answer, and makes no job."""
    url = data_url(scene)
    cases = [
        ({"json": {"image": url, "stream": True}}, 400, "stream is not supported by /v1/scenes", "stream"),
        ({"json": {"image": url, "response_format": "url"}}, 400, "not supported", "response_format"),
        ({"json": {"image": url, "partial_images": 1}}, 400, "not supported", "partial_images"),
        ({"json": {"image": url, "path": "a.tif"}}, 400, "choose where", "path"),
        ({"json": {"image": url, "tiles": 5}}, 400, "did you mean 'tile'", "tiles"),
        ({"json": {"image": url, "processor": "none"}}, 400, "none", "processor"),
        ({"json": {"image": url, "output_format": "json"}}, 400, "it can be", "output_format"),
        ({"json": {"image": url, "model": "none"}}, 404, "not served here", "model"),
        ({"json": {"image": "scene.tif"}}, 400, "nothing that this server reads", "image"),
        ({"json": {"image": "file:///etc/passwd"}}, 400, "", "image"),
        ({"json": {"image": "data:image/tiff;base64,AAAA"}}, 400, "", "image"),
        ({"json": {}}, 400, "no image was sent", "image"),
        ({"json": [1]}, 400, "must be a JSON object", None),
        ({"files": {"image": ("a.tif", b"no image")}}, 400, "a.tif", "image"),
        ({"files": {"image": ("a.tif", b"")}}, 400, "empty", "image"),
        ({"content": b"x", "headers": {"Content-Type": "text/x"}}, 415, "", None),
    ]
    for sent, status, words, param in cases:
        refused(server.post("/v1/scenes", **sent), status, words, param)
    assert made(server.get("/v1/scenes"))["data"] == []


def test_jobs_that_fail(server, array):
    """A scene that does not fit the model is a job that failed, and says it as a request would have heard it."""
    bad = scene_of(array[:5])
    job = done(server, send(server, bad))
    direct = server.post("/v1/images/edits", files={"image": ("scene.tif", bad)})
    assert (job["status"], job["outputs"], job["progress"]) == ("failed", [], 0)
    assert job["error"] == {"code": "BadRequestError", "message": direct.json()["error"]["message"]}
    assert "5 bands" in job["error"]["message"]
    assert job["completed_at"] >= job["started_at"]
    for below in ("/content", "/pixel", "/figure"):
        refused(get(server, job, below, row=0, col=0), 409, "5 bands", "scene_id")
    refused(get(server, job, "/content", variant="preview"), 409, "5 bands", "scene_id")


def picture(content):
    """A PNG's pixels, RGBA."""
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGBA"))


def test_the_picture_of_a_result(server, scene, expected):
    """It has a colour a class, and nothing where there is nodata; a part of it is fetched as of any file."""
    job = done(server, send(server, scene))
    answer = get(server, job, "/content", variant="preview")
    assert answer.headers["content-disposition"] == 'inline; filename="scene.png"'
    path, query = f"/v1/scenes/{job['id']}/content", {"variant": "preview"}
    part = server.get(path, params=query, headers={"Range": "bytes=0-7"})
    assert (part.status_code, part.content) == (206, b"\x89PNG\r\n\x1a\n")
    shown = picture(answer.content)
    seen = expected[0] != 255
    np.testing.assert_array_equal(shown[..., 3], np.where(seen, 255, 0))
    np.testing.assert_array_equal(shown[seen], np.array(PALETTE, np.uint8)[expected[0][seen]])


@pytest.mark.parametrize("output", ["classes", "probabilities"])
def test_pixels(server, scene, output):
    """The values, the class and the place of a pixel are those that rasterio reads from the result."""
    job = done(server, send(server, scene, output=output, output_format="tiff"))
    with (
        rasterio.MemoryFile(get(server, job, "/content").content) as memory,
        memory.open() as file,
    ):
        found = file.read()
        for row, col in ((0, 0), (299, 399), (60, 110), (123, 45)):
            told = made(get(server, job, "/pixel", row=row, col=col))
            values = [None if value == 255 or np.isnan(value) else value for value in found[:, row, col].tolist()]
            assert told["values"] == values
            assert (told["row"], told["col"], told["crs"]) == (row, col, "EPSG:32614")
            assert (told["x"], told["y"]) == file.xy(row, col)
            assert told["bands"] == [name or "" for name in file.descriptions]
            named = None if output == "probabilities" or values[0] is None else ("land", "water")[values[0]]
            assert told["class"] == (None if named is None else {"id": values[0], "name": named})
    for wrong, param in (({"row": 300, "col": 0}, "row"), ({"row": 0, "col": 400}, "col")):
        refused(get(server, job, "/pixel", **wrong), 400, "300 rows and 400 columns", param)
    for wrong in ("-1", "1.5", "x", "", "1" * 50, "\u0661"):
        refused(get(server, job, "/pixel", row=wrong, col=0), 400, "row must be a whole number from 0", "row")
    refused(get(server, job, "/pixel", row=0), 400, "col must be", "col")
    refused(
        get(server, job, "/pixel", row=0, col=0, processor="none"), 404, "it has results of segmentation", "processor"
    )


def test_a_figure_of_a_result(server, scene):
    """A raster has a figure as PNG under its own name; other results and processors have none."""
    pytest.importorskip("matplotlib", reason="it draws the figure")
    job = done(server, send(server, scene, output="classes,polygons"))
    answer = get(server, job, "/figure", processor="classes")
    assert answer.headers["content-type"] == "image/png"
    assert 'filename="scene-classes-figure.png"' in answer.headers["content-disposition"]
    assert min(picture(answer.content).shape[:2]) > 400
    refused(get(server, job, "/figure", processor="polygons"), 400, "this result is geojson", "processor")
    refused(get(server, job, "/figure", processor="none"), 404, "classes, polygons", "processor")


def test_results_that_are_no_rasters(server, scene, expected):
    """Polygons and areas say the same of the classes; what has no pixels has none to ask for."""
    for output, kind in (("polygons", "geojson"), ("areas", "json")):
        job = done(server, send(server, scene, output=output))
        assert job["status"] == "completed", job
        (told,) = job["outputs"]
        assert told["size"] is None
        assert [row["pixels"] for row in told["classes"]] == [int((expected == number).sum()) for number in range(2)]
        answer = get(server, job, "/content")
        if output == "polygons":
            assert (told["output_format"], answer.headers["content-type"]) == (kind, "application/geo+json")
            features = answer.json()["features"]
            for number in range(2):
                counted = sum(one["properties"]["pixels"] for one in features if one["properties"]["class"] == number)
                assert counted == int((expected == number).sum())
            shown = picture(get(server, job, "/content", variant="preview").content)
            assert shown.shape == (300, 400, 4)
        else:
            assert (told["output_format"], answer.headers["content-type"]) == (kind, "application/json")
            counts = [row["pixels"] for row in answer.json()["classes"]]
            assert counts == [int((expected == number).sum()) for number in range(2)]
        refused(
            get(server, job, "/pixel", row=0, col=0), 400, "single pixels of this result cannot be read", "processor"
        )
    job = done(server, send(server, scene, output_format="npz"))
    with np.load(io.BytesIO(get(server, job, "/content").content)) as archive:
        np.testing.assert_array_equal(archive["array"], expected)
    refused(get(server, job, "/pixel", row=0, col=0), 400, "single pixels of this result cannot be read", "processor")


def test_pages(server, scene):
    """Both orders have every job once, whatever the limit; a job that is deleted between does not disturb."""
    small = scene_of(pixels(1, 16, 16))
    jobs = [send(server, small)["id"] for _ in range(7)]
    ended(server, jobs)
    for order, all_ids in (("desc", jobs[::-1]), ("asc", jobs)):
        for limit in (1, 3, 7, 100):
            found, after = [], {}
            while True:
                page = made(server.get("/v1/scenes", params={"limit": limit, "order": order, **after}))
                ids = [job["id"] for job in page["data"]]
                assert page["object"] == "list"
                assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
                found += ids
                if not page["has_more"]:
                    break
                assert len(ids) == limit
                after = {"after": ids[-1]}
            assert found == all_ids
    assert [job["id"] for job in made(server.get("/v1/scenes"))["data"]] == jobs[::-1]
    assert made(server.get("/v1/scenes", params={"after": jobs[0]})) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    server.delete(f"/v1/scenes/{jobs[3]}")
    refused(server.get("/v1/scenes", params={"after": jobs[3]}), 404, "there is no job", "after")
    assert [job["id"] for job in made(server.get("/v1/scenes", params={"after": jobs[4]}))["data"]] == jobs[2::-1]
    for limit in ("0", "101", "-1", "x", "1.0", "1" * 30):
        refused(server.get("/v1/scenes", params={"limit": limit}), 400, "limit must be 1 to 100", "limit")
    for order in ("up", "DESC", ""):
        refused(server.get("/v1/scenes", params={"order": order}), 400, "order must be asc or desc", "order")


@pytest.mark.parametrize("job_id", ["x", "scene_", "scene_" + "a" * 43, "scene_" + "a" * 5000, "..%2f..", "%00"])
def test_ids_of_no_job(server, job_id):
    """Whatever is asked of them is a 404."""
    for method, below in (("GET", ""), ("DELETE", ""), ("GET", "/content"), ("GET", "/pixel?row=0&col=0")):
        answer = server.request(method, f"/v1/scenes/{job_id}{below}")
        assert answer.status_code == 404, answer.text


def test_deleting(server, water_server, tmp_path, scene):
    """Jobs that wait, run or are finished are gone at once, with their files; the others go on."""
    files = open_files(water_server)
    content, expected = long_scene(tmp_path / "slow.tif", 1000)
    jobs = [send(server, content, tile="16") for _ in range(6)]
    wait_for(lambda: (made(get(server, jobs[0]))["tiles"] or {"done": 0})["done"] > 0, "the first job did not run")
    assert made(get(server, jobs[5]))["status"] == "queued"
    for job in (jobs[5], *jobs[:4]):
        assert made(server.delete(f"/v1/scenes/{job['id']}"))["deleted"] is True
        refused(get(server, job), 404, "no such job", "scene_id")
        refused(get(server, job, "/content"), 404, "no such job", "scene_id")
    last = send(server, scene)
    assert done(server, jobs[4])["status"] == done(server, last)["status"] == "completed"
    np.testing.assert_array_equal(raster(get(server, jobs[4], "/content").content), expected)
    assert {job["id"] for job in made(server.get("/v1/scenes"))["data"]} == {jobs[4]["id"], last["id"]}
    for job in (jobs[4], last):
        server.delete(f"/v1/scenes/{job['id']}")
    wait_for(lambda: open_files(water_server) <= files, "files of jobs are open still")


def test_ranges(server, scene):
    """A download that goes on piece by piece is the whole; a part that is not there is refused."""
    job = done(server, send(server, scene, output="probabilities"))
    path = f"/v1/scenes/{job['id']}/content"
    whole = server.get(path)
    headers, data = {"If-Range": whole.headers["etag"]}, b""
    while len(data) < len(whole.content):
        answer = server.get(path, headers={**headers, "Range": f"bytes={len(data)}-{len(data) + 99_999}"})
        assert answer.status_code == 206
        last = min(len(data) + 99_999, len(whole.content) - 1)
        assert answer.headers["content-range"] == f"bytes {len(data)}-{last}/{len(whole.content)}"
        data += answer.content
    assert data == whole.content
    assert server.get(path, headers={"If-Range": '"other"', "Range": "bytes=5-"}).content == whole.content
    answer = server.get(path, headers={"Range": f"bytes={len(data)}-"})
    refused(answer, 416, f"{len(data)} bytes", None)
    assert answer.headers["content-range"] == f"bytes */{len(data)}"
    answer = server.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert (answer.headers["etag"], answer.headers["accept-ranges"]) == (whole.headers["etag"], "bytes")
    assert int(answer.headers["content-length"]) == len(data)


def test_gdal_reads_a_window_of_a_result(server, water_server, scene, expected):
    """A result is read over the network as any GeoTIFF is, without all of it."""
    job = done(server, send(server, scene))
    path = f"/vsicurl/{water_server.url}/v1/scenes/{job['id']}/content"
    with rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR", GDAL_HTTP_PROXY=""), rasterio.open(path) as file:
        window = rasterio.windows.Window(80, 40, 60, 70)
        np.testing.assert_array_equal(file.read(window=window), expected[:, 40:110, 80:140])


def test_a_client_that_goes_leaves_its_job(server, water_server, scene):
    """Jobs belong to no connection: one whose client has gone runs to its end."""
    with client(base_url=water_server.url) as other:
        job = send(other, scene, tile="32")
    assert done(server, job)["status"] == "completed"


def test_probabilities(server, scene, array):
    """Measurements are numpy's within what float32 has, and have no classes."""
    job = done(server, send(server, scene, output="probabilities"))
    valid = (array != 0).all(axis=0)
    found = raster(get(server, job, "/content").content)
    np.testing.assert_allclose(found[:, valid], probabilities(array)[:, valid], atol=1e-5)
    assert job["outputs"][0]["classes"] is None


@pytest.fixture
def narrow(guarded_server, guarded_folder):
    """A client of the server with place for two jobs, for few bytes of their files and of results; their folder.

    There are no jobs at the beginning of a test.
    """
    with client(base_url=guarded_server.url, headers={"Authorization": "Bearer secret"}) as asking:
        for job_id in listed(asking):
            asking.delete(f"/v1/scenes/{job_id}")
        yield asking, guarded_folder / "results"


def test_a_full_server(narrow, guarded_server, slow, scene):
    """One more job than there is place for is told when to come again, and is taken when another one has ended."""
    asking, _ = narrow
    with guarded_server.stopped_engine():
        jobs = [send(asking, slow[0], tile="16") for _ in range(2)]
        answer = asking.post("/v1/scenes", files={"image": ("scene.tif", scene)})
    refused(answer, 429, "2 jobs are waiting or running", None)
    assert "--mmout-max-scenes" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0
    for job in jobs:
        asking.delete(f"/v1/scenes/{job['id']}")
    job = done(asking, send(asking, scene))
    assert job["status"] == "completed"
    asking.delete(f"/v1/scenes/{job['id']}")


def test_a_server_whose_place_for_files_is_taken(narrow, guarded_server, slow):
    """The bytes that jobs hold count as well."""
    asking, _ = narrow
    padded = slow[0] + bytes(1_400_000 - len(slow[0]))
    with guarded_server.stopped_engine():
        held = send(asking, slow[0], tile="16")
        refused(asking.post("/v1/scenes", files={"image": ("a.tif", padded)}), 429, "--mmout-max-scene-bytes", None)
    asking.delete(f"/v1/scenes/{held['id']}")


def test_many_clients_of_a_full_server(narrow):
    """However many ask at once, no more are taken than there is place for, and each is answered."""
    asking, _ = narrow
    content = scene_of(pixels(5, 64, 64))
    taken, told = [], []
    begin = threading.Barrier(8)

    def one():
        with client(base_url=str(asking.base_url), headers=asking.headers) as own:
            begin.wait()
            answer = own.post("/v1/scenes", files={"image": ("a.tif", content)}, data={"tile": "8"})
            told.append(answer.status_code)
            if answer.status_code == 200:
                taken.append(answer.json()["id"])

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 8
    assert set(told) <= {200, 429}
    assert len(taken) >= 2
    for job in ended(asking, taken).values():
        assert job["status"] == "completed"
        asking.delete(f"/v1/scenes/{job['id']}")


def test_the_oldest_jobs_make_room(narrow, scene, expected):
    """A job goes with its result, in the list too; nothing but what can be fetched is in the folder."""
    asking, folder = narrow
    jobs = [done(asking, send(asking, scene)) for _ in range(1)]
    size = sum(path.stat().st_size for path in folder.iterdir() if len(path.name) > 43 and path.name[0] != ".")
    count = 300_000 // size
    jobs += [done(asking, send(asking, scene)) for _ in range(count + 1)]
    there = made(asking.get("/v1/scenes", params={"order": "asc"}))["data"]
    assert [job["id"] for job in there] == [job["id"] for job in jobs[2:]]
    for job in jobs[:2]:
        refused(get(asking, job), 404, "oldest results are removed", "scene_id")
    for job in jobs[2:]:
        np.testing.assert_array_equal(raster(get(asking, job, "/content").content), expected)
        asking.delete(f"/v1/scenes/{job['id']}")
    assert {name for name in files_of(folder) if not name.startswith((".server-", "scenes.sqlite"))} == {".lock"}


def test_results_larger_than_the_place_for_them(narrow, scene):
    """The job fails, and says which limit it was."""
    asking, _ = narrow
    job = done(asking, send(asking, scene, output="probabilities"))
    assert job["status"] == "failed"
    assert "--mmout-max-results" in job["error"]["message"]
    asking.delete(f"/v1/scenes/{job['id']}")


def test_several_processors(narrow, scene, expected):
    """Each gives a result of its own, fetched by its name; without one the first is meant."""
    server, _ = narrow
    asked = {"image": data_url(scene), "processor": ["segmentation", "tensor"], "window": [0, 0, 60, 80]}
    job = done(server, made(server.post("/v1/scenes", json=asked)))
    assert job["status"] == "completed", job
    assert [one["processor"] for one in job["outputs"]] == ["segmentation", "tensor"]
    both = [get(server, job, "/content", processor=name) for name in ("segmentation", "tensor")]
    np.testing.assert_array_equal(raster(both[0].content), expected[:, :60, :80])
    with np.load(io.BytesIO(both[1].content)) as archive:
        assert next(iter(archive.values())).size > 0
    assert get(server, job, "/content").content == both[0].content
    assert both[0].headers["etag"] != both[1].headers["etag"]
    refused(get(server, job, "/content", variant="preview", processor="tensor"), 404, "has no preview", "variant")
    refused(get(server, job, "/content", processor="none"), 404, "segmentation, tensor", "processor")
    refused(get(server, job, "/content", variant="none"), 400, "result or preview", "variant")
    server.delete(f"/v1/scenes/{job['id']}")


def test_a_key_is_asked_for(guarded_server):
    """Every route says no more than that without it."""
    with client(base_url=guarded_server.url) as asking:
        one = "/v1/scenes/scene_" + "a" * 43
        for method, path in (
            ("POST", "/v1/scenes"),
            ("GET", "/v1/scenes"),
            ("POST", "/v1/scenes/preview"),
            ("GET", one),
            ("DELETE", one),
            ("GET", f"{one}/content"),
            ("HEAD", f"{one}/content"),
            ("GET", f"{one}/pixel?row=0&col=0"),
            ("GET", f"{one}/figure"),
        ):
            answer = asking.request(method, path)
            assert answer.status_code == 401
            assert method == "HEAD" or answer.json() == {"error": "Unauthorized"}
