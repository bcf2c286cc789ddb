"""``--data-parallel-size 2``: a block of tiles goes whole to one of two engines, and both have work."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from asked_server import metric
from scene_clients import ask, raster
from scenes_for_tests import TILE, classes, pixels, write
from serving import served, stop

pytest.importorskip("rasterio", reason="makes the scene")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
]
ACROSS, DOWN = 12, 8
PROCESSORS = {"segmentation": "segmentation", "steps": "processors_for_tests:StepSize"}
OPTIONS = {"mmout": {"output_processor": PROCESSORS}}
ENGINES = ("0", "1")


@pytest.fixture(scope="module")
def server():
    """A server of two engines."""
    flags = ("--data-parallel-size", str(len(ENGINES)), "--api-server-count", "1")
    environment = {
        "VLLM_CPU_SIM_MULTI_NUMA": "1"
    }  # from 0.33 on each engine needs a NUMA node, if only a simulated one
    with served("water-index", *flags, "--additional-config", json.dumps(OPTIONS), environment=environment) as server:
        yield server
        assert stop(server.process) == 0


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A file, and its pixels."""
    array = pixels(3, DOWN * TILE, ACROSS * TILE)
    return write(tmp_path_factory.mktemp("scene") / "scene.tif", array).read_bytes(), array


def answer(server, content, **options):
    """The raster of an answer."""
    form = {"tile": TILE, **options}
    asked = ask(
        server, "POST", "/v1/images/edits", files={"image": content}, data=form, headers={"Accept": "image/tiff"}
    )
    assert asked.status_code == 200, asked.text
    return raster(asked.content)


def answered(server):
    """The requests that each engine has answered."""
    return np.array([metric(server, "vllm:request_success_total", engine=engine) for engine in ENGINES])


def test_both_engines_get_whole_blocks(server, scene):
    """Each block is one request of one engine, and both engines answer several."""
    before = answered(server)
    sizes = answer(server, scene[0], processor="steps")[0, ::TILE, ::TILE].astype(float)
    blocks = answered(server) - before
    assert sizes.size == ACROSS * DOWN
    assert blocks.sum() == pytest.approx((1 / sizes).sum())
    assert (blocks >= 2).all()


def test_scenes_are_what_one_engine_makes_of_them(server, scene):
    """Several at once, joined of tiles of both engines, are those of the oracle; nothing is left waiting."""
    content, array = scene
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda overlap: answer(server, content, overlap=overlap), (0, 4) * 2)
    for result in results:
        np.testing.assert_array_equal(result, classes(array))
    assert metric(server, "mmout:decodes_pending") == 0
