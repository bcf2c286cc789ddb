"""A whole scene through the server."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from scenes_for_tests import pixels, write

from vllm_mmout import OutputParams

rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")
pytestmark = [pytest.mark.engine, pytest.mark.slow]
SIZE = 4096
PLACE = {"crs": "EPSG:32614", "transform": rasterio.Affine(30, 0, 500_000, 0, -30, 3_000_000)}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A scene of 4096 x 4096 pixels, six bands of uint16, with a hole of nodata."""
    array = np.tile(pixels(34, 512, 512), (1, SIZE // 512, SIZE // 512))
    array[:, 1000:2000, 300:900] = 0
    storage = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "deflate", "zlevel": 1}
    return write(tmp_path_factory.mktemp("scene") / "scene.tif", array, nodata=0, **PLACE, **storage)


@pytest.mark.parametrize("options", [{}, {"overlap": 64, "output": "confidence", "tile": 1024}])
def test_a_served_scene_is_that_of_the_library(water_server, llm, scene, tmp_path, options):
    """The GeoTIFF of the server and that of ``LLM.generate`` have the same pixels, place, nodata and tags."""
    with scene.open("rb") as file:
        answer = httpx.post(
            f"{water_server.url}/v1/images/edits",
            files={"image": file},
            data={name: str(value) for name, value in options.items()},
            headers={"Accept": "image/tiff"},
            timeout=300,
        )
    assert answer.status_code == 200, answer.text[:500]
    served, made = tmp_path / "served.tif", tmp_path / "made.tif"
    served.write_bytes(answer.content)
    llm.generate(str(scene), OutputParams(path=str(made), **options), use_tqdm=False)
    with rasterio.open(served) as one, rasterio.open(made) as other:
        assert str(one.profile) == str(other.profile)  # nodata may be NaN, which equals nothing
        assert one.tags() == other.tags()
        assert one.shape == (SIZE, SIZE)
        np.testing.assert_array_equal(one.read(), other.read())
        assert not one.dataset_mask()[1000:2000, 300:900].any()
