"""The image routes of a running server, by OpenAI's own client."""

from __future__ import annotations

import base64
import io
import json
import time
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from asked_server import metric, open_files, posted
from PIL import Image
from scenes_for_tests import classes, pixels, write

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
from rasterio.features import geometry_mask  # noqa: E402 - rasterio may be absent

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ARRAY = pixels(31)
PLACE = {"crs": "EPSG:32614", "transform": rasterio.Affine(30, 0, 5, 0, -30, 7)}


@pytest.fixture(scope="module")
def client(water_server):
    """OpenAI's client."""
    with closing(openai.OpenAI(base_url=f"{water_server.url}/v1", api_key="none", max_retries=0)) as client:
        yield client


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A small GeoTIFF."""
    return write(tmp_path_factory.mktemp("scene") / "scene.tif", ARRAY, **PLACE)


@pytest.fixture(autouse=True)
def _goes_on(water_server):
    """After each test the server answers."""
    yield
    assert httpx.get(f"{water_server.url}/health").status_code == 200


def opened(content):
    """A GeoTIFF's pixels and place."""
    with rasterio.MemoryFile(content) as file, file.open() as raster:
        return raster.read(), raster.crs, raster.transform


def colours(content):
    """The pixels of a picture, RGBA."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"))


def test_an_edit_is_the_picture_of_the_classes(client, scene):
    """``images.edit`` gives a PNG of the input's size, one colour a class."""
    answer = client.images.edit(image=scene, prompt="water")
    picture = colours(base64.b64decode(answer.data[0].b64_json))
    expected = classes(ARRAY)[0]
    assert picture.shape[:2] == expected.shape
    found = {number: {tuple(pixel) for pixel in picture[expected == number]} for number in (0, 1)}
    assert all(len(colour) == 1 for colour in found.values())
    assert found[0] != found[1]
    assert (answer.output_format, answer.size, answer.quality or "auto") == ("png", "90x75", "auto")
    assert answer.usage.total_tokens == 1
    assert abs(answer.created - time.time()) < 600


def test_areas_of_features_are_geojson(client, scene):
    """Statistics of each feature of an area of interest, in the format of the area itself."""
    ring = [[5 + 30 * col, 7 - 30 * row] for col, row in ((10, 10), (60, 10), (60, 50), (10, 10))]
    features = [
        {"type": "Feature", "id": name, "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
        for name in ("a", "b")
    ]
    area = {"type": "FeatureCollection", "features": features, "crs": None}
    options = {"aoi": area, "output": "areas", "output_format": "geojson"}
    answer = client.images.edit(image=scene, prompt="", extra_body={**options, "aoi": json.dumps(area)})
    first, second = json.loads(base64.b64decode(answer.data[0].b64_json))["features"]
    assert (first["id"], second["id"], first["properties"]) == ("a", "b", second["properties"])
    inside = ~geometry_mask([features[0]["geometry"]], (75, 90), PLACE["transform"])
    assert sum(count for name, count in first["properties"].items() if name.endswith("_pixels")) == inside.sum()


def test_a_raster_keeps_its_place(client, scene):
    """``output_format=tiff`` is the GeoTIFF that ``LLM.generate`` writes: classes, place and all."""
    answer = client.images.edit(image=scene, prompt="", extra_body={"output_format": "tiff", "tile": 32})
    array, crs, transform = opened(base64.b64decode(answer.data[0].b64_json))
    np.testing.assert_array_equal(array, classes(ARRAY))
    assert (crs, transform) == (PLACE["crs"], PLACE["transform"])
    assert answer.usage.total_tokens == 9


def test_a_result_is_fetched_from_its_url(client, scene):
    """``response_format=url`` answers with an address that gives the bytes."""
    answer = client.images.edit(image=scene, prompt="", response_format="url", extra_body={"output_format": "tiff"})
    assert answer.data[0].b64_json is None
    fetched = httpx.get(answer.data[0].url)
    assert fetched.headers["content-type"] == "image/tiff"
    np.testing.assert_array_equal(opened(fetched.content)[0], classes(ARRAY))
    unknown = httpx.get(answer.data[0].url[:-10] + "x" * 6 + ".tif")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["param"] == "name"


def test_accept_asks_for_the_bytes(water_server, scene):
    """With ``Accept: image/tiff`` the answer is the file."""
    answer = httpx.post(
        f"{water_server.url}/v1/images/edits", files={"image": scene.read_bytes()}, headers={"Accept": "image/tiff"}
    )
    assert answer.headers["content-type"] == "image/tiff"
    np.testing.assert_array_equal(opened(answer.content)[0], classes(ARRAY))


def test_several_processors_give_several_entries(client, scene):
    """A list of processors gives an entry for each, which says whose it is."""
    answer = client.images.edit(image=scene, prompt="", extra_body={"processor": ["segmentation"]})
    assert [entry.processor for entry in answer.data] == ["segmentation"]


def test_several_kinds_give_several_entries(client, scene):
    """A list of kinds gives an entry for each; the format goes to the kind that can have it."""
    asked = {"output": ["classes", "polygons", "areas"], "output_format": "tiff"}
    answer = client.images.edit(image=scene, prompt="", extra_body=asked)
    named = {entry.output: entry for entry in answer.data}
    formats = {name: entry.output_format for name, entry in named.items()}
    assert formats == {"classes": "tiff", "polygons": "geojson", "areas": "json"}
    np.testing.assert_array_equal(opened(base64.b64decode(named["classes"].b64_json))[0], classes(ARRAY))
    counted = json.loads(base64.b64decode(named["areas"].b64_json))["classes"]
    assert sum(row["pixels"] for row in counted) == classes(ARRAY).size
    with pytest.raises(openai.BadRequestError, match="cannot be 'mp4'"):
        client.images.edit(image=scene, prompt="", extra_body={**asked, "output_format": "mp4"})


def test_options_travel_in_extra_body(client, scene):
    """Bands, a window and kinds of output are those of ``OutputParams``."""
    answer = client.images.edit(
        image=scene,
        prompt="",
        extra_body={
            "window": [10, 20, 40, 50],
            "output": "confidence",
            "output_format": "tiff",
            "bands": [1, 2, 3, 4, 5, 6],
        },
    )
    array, _, transform = opened(base64.b64decode(answer.data[0].b64_json))
    assert array.shape == (1, 40, 50)
    assert array.dtype == np.float32
    assert transform == PLACE["transform"] @ rasterio.Affine.translation(20, 10)


def test_structured_results_are_json(client, scene):
    """The table of areas comes as JSON: pixels and square metres of each class."""
    answer = client.images.edit(image=scene, prompt="", extra_body={"output": "areas"})
    assert answer.output_format == "json"
    rows = json.loads(base64.b64decode(answer.data[0].b64_json))
    counts = np.bincount(classes(ARRAY)[0].ravel(), minlength=2)
    assert [(row["id"], row["pixels"], row["area_m2"]) for row in rows["classes"]] == [
        (number, count, count * 900) for number, count in enumerate(counts)
    ]


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"])
def test_an_image_may_come_in_json(water_server, scene, kind):
    """A body of JSON has the file as a data URL, however its type is written."""
    url = f"data:image/tiff;base64,{base64.b64encode(scene.read_bytes()).decode()}"
    body = json.dumps({"image": url, "output_format": "tiff"}).encode()
    headers = {"Content-Type": kind}
    answer = httpx.post(f"{water_server.url}/v1/images/edits", content=body, headers=headers).raise_for_status().json()
    np.testing.assert_array_equal(opened(base64.b64decode(answer["data"][0]["b64_json"]))[0], classes(ARRAY))


def test_several_files_are_one_input(client, tmp_path):
    """A file a band, in the order in which the client sends them; their names say nothing of bands."""
    files = [write(tmp_path / f"part{number}.tif", ARRAY[number : number + 1], **PLACE) for number in range(6)]
    answer = client.images.edit(image=files, prompt="", extra_body={"output_format": "tiff"})
    np.testing.assert_array_equal(opened(base64.b64decode(answer.data[0].b64_json))[0], classes(ARRAY))


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # OpenAI's model for it is gone, not the method
def test_a_variation_needs_no_prompt(client, scene):
    """``create_variation`` answers as ``edit``."""
    answer = client.images.create_variation(image=scene)
    again = client.images.edit(image=scene, prompt="p")
    assert answer.data[0].b64_json == again.data[0].b64_json


def test_a_model_of_rasters_generates_nothing_of_text(client):
    """``images.generate`` says what the model takes instead."""
    with pytest.raises(openai.BadRequestError, match="takes rasters of 6 bands") as caught:
        client.images.generate(prompt="a lake")
    assert caught.value.param == "prompt"


def test_partial_images_grow_into_the_result(client, tmp_path):
    """Of three previews the first comes before half of the tiles; finished pixels grow, and are those of the result."""
    array = pixels(32, 320, 320)
    path = write(tmp_path / "scene.tif", array)
    stream = client.images.edit(
        image=path, prompt="", stream=True, partial_images=3, extra_body={"tile": 32, "overlap": 8}
    )
    *partial, last = stream
    assert [event.type for event in partial] == ["image_edit.partial_image"] * len(partial)
    assert [event.partial_image_index for event in partial] == list(range(len(partial)))
    assert partial
    assert last.type == "image_edit.completed"
    assert last.usage.total_tokens == 169
    final = colours(base64.b64decode(last.b64_json))
    seen = np.zeros(final.shape[:2], bool)
    for event in partial:
        preview = colours(base64.b64decode(event.b64_json))
        done = preview[..., 3] > 0
        assert (done | ~seen).all()
        np.testing.assert_array_equal(preview[done], final[done])
        seen = done
    assert 0 < (colours(base64.b64decode(partial[0].b64_json))[..., 3] > 0).mean() < 0.5


def test_partial_images_may_be_jpegs(client, tmp_path):
    """What is not finished is black, and the result comes."""
    path = write(tmp_path / "scene.tif", pixels(33, 200, 200))
    *partial, last = client.images.edit(
        image=path, prompt="", stream=True, partial_images=3, output_format="jpeg", extra_body={"tile": 32}
    )
    assert partial
    for event in (*partial, last):
        with Image.open(io.BytesIO(base64.b64decode(event.b64_json))) as picture:
            assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (200, 200))
    assert last.type == "image_edit.completed"


def test_a_stream_without_tiles_is_the_result_alone(client, scene):
    """An input that fits one forward has nothing to show before."""
    (event,) = client.images.edit(image=scene, prompt="", stream=True, partial_images=2)
    assert event.type == "image_edit.completed"
    assert Image.open(io.BytesIO(base64.b64decode(event.b64_json))).size == (90, 75)


def png(width=64, height=64):
    """A small picture of three bands."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "blue").save(buffer, "png")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("fields", "files", "param"),
    [
        ({}, {}, "image"),
        ({}, {"image": b"no picture at all"}, "image"),
        ({}, {"image": b""}, "image"),
        ({}, {"image": png()}, "image"),
        ({"bands": "9"}, {"image": png()}, None),
        ({"tiel": "5"}, {"image": png()}, "tiel"),
        ({"tile": "x"}, {"image": png()}, "tile"),
        ({"n": "2"}, {"image": png()}, "n"),
        ({"size": "512x512"}, {"image": png()}, "size"),
        ({"output": "heights"}, {"image": png()}, "output"),
        ({"processor": "none-such"}, {"image": png()}, "processor"),
        ({"path": "x.tif"}, {"image": png()}, "path"),
        ({"image": "/etc/passwd"}, {}, "image"),
        ({"image": "file:///etc/passwd"}, {}, "image"),
        ({"image": "http://127.0.0.1:1/x.tif"}, {}, "image"),
        ({"output_format": "png", "output_compression": "50"}, {"image": png()}, "output_compression"),
        ({"partial_images": "1"}, {"image": png()}, "partial_images"),
    ],
)
def test_what_a_client_does_wrong_is_a_bad_request(water_server, fields, files, param):
    """Each is 400 with an error in OpenAI's form, which names the field."""
    answer = httpx.post(f"{water_server.url}/v1/images/edits", data=fields, files=files or {"prompt": (None, "x")})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "BadRequestError"
    assert error["code"] == 400
    assert param is None or error["param"] == param, error


def test_a_truncated_file_is_a_bad_request(client, scene):
    """Half of a GeoTIFF is refused, not a fault of the server."""
    half = scene.read_bytes()[: scene.stat().st_size // 2]
    with pytest.raises(openai.BadRequestError) as caught:
        client.images.edit(image=half, prompt="")
    assert caught.value.param == "image"


def test_a_model_that_is_not_served_is_not_found(client, scene):
    """Another model is 404."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.images.edit(model="gpt-image-1", image=scene, prompt="")
    assert caught.value.param == "model"


def test_no_more_tiles_than_the_limit(client, scene):
    """More tiles than --mmout-max-tiles are refused before the first is read."""
    with pytest.raises(openai.BadRequestError, match="4096"):
        client.images.edit(image=write_large(scene.parent), prompt="", extra_body={"tile": 8})


def write_large(folder: Path, size: int = 1024, corner: np.ndarray | None = None) -> bytes:
    """A file of many pixels, all zero and of few bytes but for those in its corner."""
    path = folder / "large.tif"
    profile = {"driver": "GTiff", "count": 6, "height": size, "width": size, "dtype": "uint16"}
    with rasterio.open(path, "w", tiled=True, compress="deflate", SPARSE_OK=True, **profile) as file:
        if corner is not None:
            file.write(corner, window=((0, corner.shape[1]), (0, corner.shape[2])))
    return path.read_bytes()


def test_a_client_that_goes_away_leaves_nothing(water_server, scene, tmp_path):
    """A closed socket in the middle of a scene ends it: no file, nothing pending, no place taken."""
    large = write_large(tmp_path, 16384, pixels(33, 1024, 1024))  # its tiles take half a minute; it is kept on disk
    before, tiles = open_files(water_server), metric(water_server, "mmout:tiles_total")
    connection = posted(water_server, "/v1/images/edits", files={"image": large}, data={"tile": "256"})
    deadline = time.monotonic() + 300
    while metric(water_server, "mmout:tiles_total") < tiles + 20:
        assert time.monotonic() < deadline, "no tile was joined"
    assert open_files(water_server) - before, "the upload and the result, of which nothing may stay"
    connection.close()
    while (left := pending(water_server)) or open_files(water_server) - before:
        assert time.monotonic() < deadline, (left, open_files(water_server) - before)
        time.sleep(0.2)
    done = metric(water_server, "mmout:tiles_total")
    assert done < tiles + 64 * 64
    files, tiled = {"image": scene.read_bytes()}, {"tile": "32"}
    httpx.post(f"{water_server.url}/v1/images/edits", files=files, data=tiled).raise_for_status()
    assert metric(water_server, "mmout:tiles_total") == done + 9


def pending(server):
    """What is under way, as the server counts it."""
    return metric(server, "mmout:decodes_pending") + metric(server, "vllm:num_requests_running")


def test_the_served_model_is_described(water_server):
    """``/v1/models`` says which bands the model takes in which order, and what it answers with."""
    (card,) = httpx.get(f"{water_server.url}/v1/models").json()["data"]
    assert [band["common_names"] for band in card["mmout"]["bands"]][:2] == [["blue"], ["green"]]
    assert card["mmout"]["processors"][0]["answers_with"] == "raster"
