"""Results of a job that makes a map of each day: each is listed, sent, drawn and catalogued by its day."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

pytest.importorskip("vllm", reason="the server is vLLM's")
pytest.importorskip("pystac", reason="the job has STAC items")
rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")

from asked_board import asking, board_in, idle_runner  # noqa: E402 - vLLM may be absent

from vllm_mmout.geo import Georeference  # noqa: E402
from vllm_mmout.outputs import RasterOutput  # noqa: E402
from vllm_mmout.outputs.areas import AreasOutput  # noqa: E402
from vllm_mmout.serving.response.format_choice import FormatChoice  # noqa: E402
from vllm_mmout.wings.jobs.server.job import Delivery  # noqa: E402
from vllm_mmout.wings.jobs.server.results import make_result  # noqa: E402

pytestmark = pytest.mark.engine
DAYS = ["2024-05-01", "2024-06-03"]
PLACE = Georeference(crs="EPSG:32632", transform=(10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0))


def classes(number):
    """A map whose pixels all have the class ``number``."""
    palette = np.array([[200, 180, 20], [20, 40, 200]], np.uint8)
    array = np.full((1, 60, 60), number, np.uint8)
    return RasterOutput(array, georeference=PLACE, palette=palette, class_names=("land", "water"))


@pytest.fixture
def board(tmp_path):
    """The jobs of a server."""
    with board_in(tmp_path) as board:
        yield board


@pytest.fixture
def get(board):
    """Ask a server with these jobs."""
    return asking(board, idle_runner(board))


@pytest.fixture
def job(board):
    """A completed job with two kinds of output of two days: land on the first day, water on the second."""
    document = Delivery(document=True)
    job = board.add(model="m", name="a_2024-06-03.tif", nbytes=5, most=10, most_bytes=1000, delivery=document)
    assert board.begin(job)
    results = {}
    for number, day in enumerate(DAYS):
        for kind, output in {"areas": AreasOutput.of(classes(number)), "classes": classes(number)}.items():
            choice = FormatChoice(output_format="tiff" if kind == "classes" else "json")
            results[kind, day] = make_result(output, choice, None, board.store.shared.work)
    assert board.complete(job.id, results, 2)
    return board.get(job.id)


def test_a_day_chooses_among_the_results_of_a_job(get, job):
    """The file, a pixel and the map tiles are those of the day, by default the first. Unknown days are refused."""
    here = f"/v1/scenes/{job.id}"
    outputs = get(here).json()["outputs"]
    assert [(each["day"], each["processor"]) for each in outputs] == list(product(DAYS, ["areas", "classes"]))
    for number, day in enumerate(DAYS):
        file = get(f"{here}/content?processor=classes&day={day}")
        assert f'filename="{day}.tif"' in file.headers["content-disposition"]
        with rasterio.MemoryFile(file.content) as memory, memory.open() as raster:
            assert (raster.read() == number).all()
        assert get(f"{here}/pixel?row=1&col=2&processor=classes&day={day}").json()["values"] == [number]
        tiles = get(f"{here}/tilejson.json?day={day}").json()["tiles"]
        assert tiles == [f"http://maps.example{here}/tiles/{{z}}/{{x}}/{{y}}.png?day={day}"]
    assert (
        get(f"{here}/content?processor=classes").content
        == get(f"{here}/content?processor=classes&day={DAYS[0]}").content
    )
    unknown = get(f"{here}/content?day=2024-05-02")
    assert (unknown.status_code, "it has results of 2024-05-01, 2024-06-03" in unknown.text) == (404, True)


def test_each_day_has_a_stac_item_and_a_result_of_the_process(get, job):
    """An item states the day as its time, though the input's name has another. Ids of OGC results name the days."""
    here = f"/v1/scenes/{job.id}"
    for day in DAYS:
        item = get(f"{here}/item.json?processor=classes&day={day}").json()
        assert item["id"] == f"{job.id}-classes-{day}"
        assert (item["properties"]["title"], item["properties"]["start_datetime"]) == (day, f"{day}T00:00:00Z")
        assert item["assets"]["data"]["href"].endswith(f"{here}/content?processor=classes&day={day}")
    links = get("/v1/stac/collection.json").json()["links"]
    assert sorted(link["title"] for link in links if link["rel"] == "item") == DAYS
    results = get(f"/ogc/jobs/{job.id}/results").json()
    assert list(results) == [f"{kind}-{day}" for day in DAYS for kind in ("areas", "classes")]
