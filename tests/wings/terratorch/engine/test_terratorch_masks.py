"""Prithvi's masks, by every way to them, are those of the plain PyTorch model."""

from __future__ import annotations

import base64
import io

import httpx
import numpy as np
import pytest
import rasterio
from plain_terratorch import check_mask, location_of, read, shares
from scene_clients import ended, made

from scripts import run_script

DEADLINE_S = 600


@pytest.fixture(scope="module")
def logits(plain, flood, scene):
    """The plain model's, float32 [2, 448, 448]."""
    return plain(flood).by_tiles(read(scene), location_of(scene))


def mask_of(content):
    """The one band of a GeoTIFF."""
    with rasterio.open(io.BytesIO(content)) as file:
        assert file.count == 1
        return file.read(1)


def test_each_class_has_a_tenth_of_the_pixels(logits):
    """Otherwise nothing below would say anything."""
    assert shares(logits.argmax(0), 2).min() >= 0.1


class TestPython:
    def test_generate(self, start, flood, scene, logits):
        """``LLM.generate`` of the scene's path."""
        raster = start(flood).generate(str(scene))[0].outputs
        check_mask(raster.read()[0], logits)

    def test_single_tiles(self, start, flood, scene, logits):
        """Arrays of one tile each, in one batch, give what the tiles of the scene give."""
        from vllm_mmout import OutputParams

        tiles = np.split(read(scene)[:, :224], 2, axis=2)
        results = start(flood).generate(tiles, OutputParams(location=location_of(scene)))
        check_mask(np.concatenate([result.outputs.array[0] for result in results], 1), logits[:, :224])

    def test_bfloat16(self, start, flood, plain, scene):
        """In bfloat16 each pixel whose class is sure has the class of the plain model in bfloat16."""
        raster = start(flood, "bfloat16").generate(str(scene))[0].outputs
        expected = plain(flood, "bfloat16").by_tiles(read(scene), location_of(scene))
        # The head is centred in float32: how the classes share the pixels in bfloat16 depends on the order of its sums.
        check_mask(raster.read()[0], expected, "bfloat16", least=0.02)

    @pytest.mark.slow
    async def test_async_generate(self, flood, scene, logits):
        """``AsyncLLM.generate``, with the engine in processes of its own."""
        from engines_for_terratorch import ENGINE
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(flood), dtype="float32", **ENGINE))
        try:
            async for result in engine.generate(str(scene), request_id="scene"):
                last = result
            check_mask(last.outputs.read()[0], logits)
        finally:
            engine.shutdown()


@pytest.mark.slow
class TestCommand:
    def test_run(self, flood, scene, logits, tmp_path):
        """``vllm-mmout run`` writes it."""
        out = tmp_path / "mask.tif"
        flags = ("--dtype", "float32", "--gpu-memory-utilization", "0.3", "--distributed-executor-backend", "uni")
        run_script("-m", "vllm_mmout.cli", "run", str(flood), str(scene), "-o", str(out), *flags)
        check_mask(read(out)[0], logits)


@pytest.mark.slow
class TestServer:
    @pytest.fixture
    def client(self, server):
        """Asks the server."""
        with httpx.Client(base_url=server.url, trust_env=False, timeout=DEADLINE_S) as asking:
            yield asking

    def test_edits(self, client, scene, logits):
        """``/v1/images/edits`` answers with the file."""
        answer = client.post(
            "/v1/images/edits", files={"image": scene.open("rb")}, headers={"Accept": "image/tiff"}
        ).raise_for_status()
        check_mask(mask_of(answer.content), logits)

    def test_openai(self, server, scene, logits):
        """OpenAI's client gets it in base64."""
        openai = pytest.importorskip("openai", reason="asks with OpenAI's client")
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=DEADLINE_S) as asking:
            answer = asking.images.edit(image=scene, prompt="", extra_body={"output_format": "tiff"})
        check_mask(mask_of(base64.b64decode(answer.data[0].b64_json)), logits)

    def test_pooling(self, client, scene, logits):
        """``/pooling`` takes the request that clients send to TerraTorch's own plugin."""
        asked = {"data": str(scene), "data_format": "path", "out_data_format": "b64_json", "indices": list(range(6))}
        answer = client.post("/pooling", json={"data": asked}).raise_for_status().json()
        assert answer["data"]["data_format"] == "b64_json"
        check_mask(mask_of(base64.b64decode(answer["data"]["data"])), logits)

    def test_scenes(self, client, scene, logits):
        """A job's result is the same file."""
        job = made(client.post("/v1/scenes", files={"image": scene.open("rb")}))
        assert ended(client, [job["id"]])[job["id"]]["status"] == "completed"
        answer = client.get(f"/v1/scenes/{job['id']}/content").raise_for_status()
        check_mask(mask_of(answer.content), logits)
