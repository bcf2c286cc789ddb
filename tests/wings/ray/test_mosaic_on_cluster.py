"""A mosaic whose scenes run on a cluster, with what Ray schedules in this process."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("obstore")
pytest.importorskip("ray.data")
rasterio = pytest.importorskip("rasterio", reason="the oracle is rasterio")

import msgspec  # noqa: E402
from cluster_here import ClusterHere  # noqa: E402 - Ray may be absent
from scenes_for_tests import pixels, write  # noqa: E402

from vllm_mmout import Mosaic, OutputParams  # noqa: E402
from vllm_mmout.wings.ray.cluster import BATCH  # noqa: E402
from vllm_mmout.wings.ray.manifest import SceneRecord  # noqa: E402
from vllm_mmout.wings.ray.mosaics import MosaicOnCluster  # noqa: E402
from vllm_mmout.wings.ray.predictor import RECORD, Predictor  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.heavy,  # Ray's import
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # of Ray itself
    pytest.mark.filterwarnings("ignore::vllm_mmout.errors.AssumedWarning"),
]


class ClusterWithEngine(ClusterHere):
    """A cluster of one worker, which is the session's engine."""

    def __init__(self, llm):
        super().__init__()
        self._llm = llm

    def records(self, rows, job):
        """Run each batch on the engine."""
        worker = type("Worker", (Predictor,), {"job": job, "__init__": lambda made: setattr(made, "_llm", self._llm)})()
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            self.log.append([Path(row["scene"]).name for row in batch])
            columns = {name: np.array([row[name] for row in batch], object) for name in batch[0]}
            yield from (msgspec.json.decode(record, type=SceneRecord) for record in worker(columns)[RECORD])


@pytest.fixture
def scenes(tmp_path):
    """Scenes of two zones and dates that overlap, and one without valid pixels."""
    places = {"a_2024-05-01": (32, 735_000), "b_2024-06-01": (33, 264_000), "empty_2024-07-01": (32, 734_500)}
    files = []
    for seed, (name, (zone, west)) in enumerate(places.items()):
        array = pixels(seed) * (not name.startswith("empty"))
        place = {"crs": f"EPSG:326{zone}", "transform": rasterio.Affine(30, 0, west, 0, -30, 4_995_000)}
        files.append(write(tmp_path / f"{name}.tif", array, nodata=0, **place))
    return files


def run(llm, files, out, params):
    """Run the command's work; return the exit status and the scenes that ran together."""
    cluster = ClusterWithEngine(llm)
    options = argparse.Namespace(
        inputs=[*map(str, files)], out=str(out), model="water-index", engine_flags=[], mosaic_grid=None
    )
    return MosaicOnCluster(options, params, cluster).status(), cluster.log


@pytest.mark.parametrize("order", ["newest", "confident"])
def test_the_map_is_that_of_one_process(llm, scenes, tmp_path, capsys, order):
    """Pixels and metadata are equal, also in a bbox; a second command runs nothing, and no parts are left."""
    where = {"bbox": (11.98, 45.04, 12.02, 45.07), "bbox_crs": "EPSG:4326"}
    params = OutputParams(mosaic=order, tile=32, **where)
    llm.generate(Mosaic(scenes), msgspec.structs.replace(params, path=str(tmp_path / "one.tif")), use_tqdm=False)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "map.tif"
    for log in ([["a_2024-05-01.tif", "b_2024-06-01.tif", "empty_2024-07-01.tif"]], []):
        assert run(llm, scenes, target, params) == (0, log)
        printed = capsys.readouterr()
        assert printed.out == f"{target}\n"
        assert "empty_2024-07-01.tif adds nothing" in printed.err
    with rasterio.open(tmp_path / "one.tif") as one, rasterio.open(target) as other:
        np.testing.assert_array_equal(other.read(), one.read(), strict=True)
        assert other.profile == one.profile
        assert other.tags() == one.tags()
        assert other.colormap(1) == one.colormap(1)
    assert (tmp_path / "out/map.qml").read_text() == (tmp_path / "one.qml").read_text()
    assert not [*(tmp_path / "out/.vllm-mmout").rglob("*.tif")]


def test_a_scene_that_cannot_be_read_is_named_or_left_out(llm, scenes, tmp_path, capsys):
    """Several kinds of output have a file each, as of a mosaic in one process."""
    damaged = tmp_path / "damaged_2024-07-01.tif"
    damaged.write_bytes(b"no raster")
    params = OutputParams(mosaic="first", tile=32, output=("classes", "areas"))
    assert run(llm, [*scenes[:2], damaged], tmp_path / "map.tif", params)[0] == 1
    assert "damaged_2024-07-01.tif" in capsys.readouterr().err
    params = msgspec.structs.replace(params, skip_failed=True)
    assert run(llm, [*scenes[:2], damaged], tmp_path / "map.tif", params)[0] == 0
    printed = capsys.readouterr()
    assert printed.out.split() == [f"{tmp_path}/map-classes.tif", f"{tmp_path}/map-areas.csv"]
    assert "damaged_2024-07-01.tif was left out of the mosaic" in printed.err


def test_scenes_are_not_run_again_if_they_could_not_be_joined(llm, scenes, tmp_path, capsys):
    """A map that would replace one of its scenes is refused, and another command joins the finished scenes."""
    target = scenes[0]
    before = target.read_bytes()
    params = OutputParams(mosaic="newest", tile=32)
    assert run(llm, scenes[:2], target, params) == (1, [["a_2024-05-01.tif", "b_2024-06-01.tif"]])
    assert "over its own input" in capsys.readouterr().err
    assert target.read_bytes() == before
    assert run(llm, scenes[:2], tmp_path / "map.tif", params) == (0, [])
