"""Other forms of a job's result: map tiles while it grows and when it is done, its STAC item, and the collection."""

from __future__ import annotations

import math
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("vllm", reason="the server is vLLM's")

import rasterio
from asked_board import asking, board_in, idle_runner
from rasterio.warp import transform

from vllm_mmout.geo import Georeference
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.partial_images import PartialImages
from vllm_mmout.serving.response.format_choice import FormatChoice
from vllm_mmout.wings.jobs.server.results import make_result
from vllm_mmout.wings.jobs.server.runner import _PreviewFile

pytestmark = pytest.mark.engine
PALETTE = np.array([[200, 180, 20], [20, 40, 200]], np.uint8)
PLACE = Georeference(crs="EPSG:32632", transform=(10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0))
CLASSES = np.random.default_rng(4).integers(0, 2, (1, 60, 60)).astype(np.uint8).repeat(10, 1).repeat(10, 2)
WHOLE = RasterOutput(CLASSES, georeference=PLACE, palette=PALETTE, class_names=("land", "water"))


@pytest.fixture
def board(tmp_path):
    """The jobs of a server."""
    with board_in(tmp_path) as board:
        yield board


@pytest.fixture
def runner(board):
    """What runs the jobs; the tests say what it does."""
    return idle_runner(board)


@pytest.fixture
def get(board, runner):
    """Ask a server with these jobs."""
    return asking(board, runner)


def added(board):
    """A job that runs."""
    job = board.add(model="m", name="scene_20240601.tif", nbytes=5, most=10, most_bytes=1000)
    assert board.begin(job)
    return job


def grown(georeference):
    """The picture of the result when its upper half is joined."""
    growing = PartialImages(1, 2, lambda: None)
    growing.begin((600, 600), WHOLE, georeference)
    growing.put(0, 0, RasterOutput(CLASSES[:, :300], palette=PALETTE))
    growing.joined()
    return growing.take().image()


def complete(board, job, *processors):
    """Store the result of a job, for each processor."""
    for_each = {
        (name, None): make_result(WHOLE, FormatChoice(output_format="tiff"), None, board.store.shared.work)
        for name in processors or ("segmentation",)
    }
    assert board.complete(job.id, for_each, 2)
    return board.get(job.id)


def tile_at(longitude, latitude, zoom):
    """Return the path of the tile around a point, and its left upper corner and pixel in metres."""
    column = int((longitude + 180) / 360 * 2**zoom)
    row = int((1 - math.asinh(math.tan(math.radians(latitude))) / math.pi) / 2 * 2**zoom)
    half = math.pi * 6378137
    return f"tiles/{zoom}/{column}/{row}.png", column * 2 * half / 2**zoom - half, half - row * 2 * half / 2**zoom


def pixels(answer):
    """The RGBA pixels of a tile."""
    assert answer.status_code == 200, answer.text
    return np.asarray(Image.open(BytesIO(answer.content)).convert("RGBA"))


def test_a_running_job_has_the_tiles_of_what_is_joined(get, board, runner):
    """They are those of the finished result, transparent where nothing is joined, and no client keeps them."""
    job = added(board)
    address = f"/v1/scenes/{job.id}"
    tile, left, top = tile_at(9.03, 45.13, 13)
    early = get(f"{address}/{tile}")
    assert (early.status_code, early.headers["retry-after"]) == (409, "1")
    assert board.running() == {job.id: True}
    file = _PreviewFile(runner.preview(board.server, job.id))
    file.show(grown(PLACE))
    seen = get(f"{address}/{tile}")
    assert seen.headers["cache-control"] == "no-store"
    assert "etag" not in seen.headers
    document = get(f"{address}/tilejson.json")
    assert document.headers["cache-control"] == "no-store"
    assert get(f"{address}/tilejson.json?processor=areas").status_code == 409
    complete(board, job)
    file.remove()
    assert list(board.store.shared.work.glob("*.tif")) == []

    done = get(f"{address}/{tile}")
    assert done.content == get(f"/v1/images/results/{board.get(job.id).outputs[0].stored}/{tile}").content
    assert done.headers["cache-control"] == "private, max-age=600, immutable"
    assert get(f"{address}/{tile}", **{"If-None-Match": done.headers["etag"]}).status_code == 304
    now, then = pixels(seen), pixels(done)
    visible = now[..., 3] == 255
    assert np.array_equal(now[visible], then[visible])
    assert not now[~visible].any()
    step = 2 * math.pi * 6378137 / 2**13 / 256
    rows, cols = np.mgrid[:256, :256]
    _, y = transform(
        "EPSG:3857", "EPSG:32632", (left + (cols + 0.5) * step).ravel(), (top - (rows + 0.5) * step).ravel()
    )
    north = np.reshape(y, (256, 256)) > 5000000 - 3000
    assert 0.1 < visible.mean() < (then[..., 3] == 255).mean()
    assert np.mean(visible == (north & (then[..., 3] == 255))) > 0.999

    whole = get(f"{address}/tilejson.json").json()
    growing = document.json()
    assert growing["tiles"] == whole["tiles"] == [f"http://maps.example{address}/tiles/{{z}}/{{x}}/{{y}}.png"]
    assert (growing["maxzoom"], growing["bounds"]) == (whole["maxzoom"], pytest.approx(whole["bounds"]))
    assert "classes" in whole
    assert not {"classes", "range"} & growing.keys()


def test_a_growing_picture_of_reduced_size_has_the_zooms_of_the_result(get, board, runner, monkeypatch):
    """A client that learned the zooms while the job ran sees each pixel when it is done."""
    monkeypatch.setattr("vllm_mmout.outputs.partial_images.PREVIEW", 150)
    job = added(board)
    _PreviewFile(runner.preview(board.server, job.id)).show(grown(PLACE))
    address = f"/v1/scenes/{job.id}"
    with rasterio.open(runner.preview(board.server, job.id).with_suffix(".tif")) as file:
        assert (file.shape, file.transform.a) == ((150, 150), 40)
    growing = get(f"{address}/tilejson.json").json()
    complete(board, job)
    whole = get(f"{address}/tilejson.json").json()
    assert (growing["maxzoom"], growing["bounds"]) == (whole["maxzoom"], pytest.approx(whole["bounds"]))


def test_a_growing_result_without_a_place_has_no_tiles(get, board, runner):
    """The message says so before the job is done."""
    job = added(board)
    _PreviewFile(runner.preview(board.server, job.id)).show(grown(None))
    answer = get(f"/v1/scenes/{job.id}/tilejson.json")
    assert answer.status_code == 400
    assert "no place on a map" in answer.json()["error"]["message"]


def test_the_result_of_a_job_is_a_stac_item(get, board):
    """It is valid, has the address of the file and the date in the client's name, and its collection links to it."""
    pytest.importorskip("pystac", reason="it writes items")
    validation = pytest.importorskip("pystac.validation")
    assert get("/v1/stac/collection.json").status_code == 404
    job = added(board)
    address = f"/v1/scenes/{job.id}"
    assert get(f"{address}/item.json").status_code == 409
    complete(board, job)
    several = complete(board, added(board), "segmentation", "again")

    answer = get(f"{address}/item.json")
    item = answer.json()
    validation.validate_dict(item, extensions=[])
    assert answer.headers["content-type"] == "application/geo+json"
    assert (item["id"], item["properties"]["start_datetime"]) == (job.id, "2024-06-01T00:00:00Z")
    assert item["assets"]["data"]["href"] == f"http://maps.example{address}/content"
    assert item["assets"]["preview"]["href"] == f"http://maps.example{address}/content?variant=preview"
    assert item["assets"]["data"]["file:size"] == board.get(job.id).outputs[0].bytes
    assert get(item["assets"]["data"]["href"]).status_code == 200
    assert get(item["assets"]["preview"]["href"]).headers["content-type"] == "image/png"

    collection = get("/v1/stac/collection.json").json()
    validation.validate_dict(collection, extensions=[])
    links = {link["rel"]: link["href"] for link in item["links"]}
    assert links["collection"] == "http://maps.example/v1/stac/collection.json"
    hrefs = [link["href"] for link in collection["links"] if link["rel"] == "item"]
    assert hrefs[-1] == links["self"]
    items = [get(href).json() for href in hrefs]
    assert {each["id"] for each in items} == {job.id, f"{several.id}-segmentation", f"{several.id}-again"}
    assert {each["collection"] for each in items} == {collection["id"]}
    assert get(items[0]["assets"]["data"]["href"]).status_code == 200
    west, south, east, north = collection["extent"]["spatial"]["bbox"][0]
    assert (west, north) == pytest.approx((9, 45.15), abs=0.01)
    assert (east - west, north - south) == pytest.approx((0.076, 0.054), abs=0.002)

    board.store.remove(board.get(job.id).outputs[0].stored)
    assert get(f"{address}/item.json").status_code == 404
