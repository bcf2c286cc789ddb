"""TerraTorch's own IO Processor plugin as an output processor, beside ours, in Python and through a server."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
import rasterio
from scene_clients import client, ended, made
from serving import served

from vllm_mmout import OutputParams

PLUGIN = "io_plugin:terratorch_segmentation"
BOTH = ("segmentation", PLUGIN)
LEAST_AGREEMENT = 0.99
"""Of masks of the plugin, which sends float16, with ours in float32."""


@pytest.fixture(scope="module")
def mask(start, flood, scene):
    """Our processor's, and each class has a tenth of its pixels."""
    (result,) = start(flood, "float32", BOTH).generate(str(scene), use_tqdm=False)
    classes = result.outputs.read()[0]
    assert min(np.mean(classes == number) for number in (0, 1)) >= 0.1
    return classes


def check(content, scene, mask):
    """Compare a GeoTIFF of the plugin, which multiplies classes by 255, with our mask."""
    with rasterio.open(io.BytesIO(content)) as file, rasterio.open(scene) as source:
        theirs = file.read(1)
        assert (file.crs, file.transform) == (source.crs, source.transform)
    assert set(np.unique(theirs)) == {0, 255}
    assert np.mean(theirs // 255 == mask) >= LEAST_AGREEMENT


def test_generate(start, flood, scene, mask):
    """``LLM.generate`` gives the plugin's own response."""
    engine = start(flood, "float32", BOTH)
    (result,) = engine.generate(str(scene), OutputParams(processor=PLUGIN), use_tqdm=False)
    assert result.outputs.data_format == "b64_json"
    check(base64.b64decode(result.outputs.data), scene, mask)


@pytest.mark.slow
def test_served(flood, scene, mask):
    """A request picks the plugin: the answer is its file, by /v1/images/edits and as a job; others get ours."""
    config = json.dumps({"mmout": {"output_processor": BOTH}})
    with (
        served(flood, "--dtype", "float32", "--additional-config", config, fresh=True) as server,
        client(base_url=server.url) as asking,
    ):

        def asked(path, **fields):
            return asking.post(path, files={"image": scene.open("rb")}, data=fields, headers={"Accept": "image/tiff"})

        theirs = asked("/v1/images/edits", processor=PLUGIN).raise_for_status()
        assert theirs.headers["content-type"] == "image/tiff"
        check(theirs.content, scene, mask)
        ours = asked("/v1/images/edits").raise_for_status()
        with rasterio.open(io.BytesIO(ours.content)) as file:
            np.testing.assert_array_equal(file.read(1), mask)
        job = made(asked("/v1/scenes", processor=PLUGIN))
        ended(asking, [job["id"]])
        check(asking.get(f"/v1/scenes/{job['id']}/content").raise_for_status().content, scene, mask)
