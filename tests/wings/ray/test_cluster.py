"""Scenes on a cluster of three nodes, of which one dies.

With ``MMOUT_LONG=1`` the bucket has 200 scenes, else 18. Two thirds of them are left when the driver is killed, so that
the cluster does not do them all before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time

import numpy as np
import pytest
import rasterio
import ray
from affine import Affine
from buckets import bucket, held, names, put, s3  # noqa: F401 - fixtures
from geotiffs_by_rasterio import TILED, geotiff
from model_folders import engine_here
from pages import all_blocks
from ray_nodes import Command, connected, nodes
from scene_generator import make_scene

from vllm_mmout import OutputParams, embedded_model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`use_:DeprecationWarning:ray"),  # of Ray itself
]

SCENES = 200 if os.environ.get("MMOUT_LONG") else 18
MODEL = "water-index"
RECORDS = ".vllm-mmout/"


def scene(number):
    """A scene of its own."""
    made = make_scene(640, 640)
    place = {"crs": made.crs, "transform": Affine(*made.transform), "nodata": made.nodata}
    return geotiff(np.roll(made.array, 3 * number, axis=2), **TILED, **place)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Scenes in folders."""
    root = tmp_path_factory.mktemp("scenes")
    for number in range(SCENES):
        path = root / f"day{number % 3}" / f"{number}.tif"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(scene(number))
    return root


@pytest.fixture(scope="module")
def engine():
    """The same model by itself, in this process."""
    return engine_here(embedded_model(MODEL))


@pytest.fixture(scope="module")
def alone(engine, folder, tmp_path_factory):
    """The files of the results of one process, by name."""
    out = tmp_path_factory.mktemp("alone")
    scenes = sorted(folder.rglob("*.tif"))
    for result in engine.generate([str(scene) for scene in scenes], OutputParams(path=f"{out}/"), use_tqdm=False):
        assert result.error is None
    of = {path.stem: path.parent.name for path in scenes}
    return {f"{of[path.name.partition('.')[0]]}/{path.name}": path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def cluster(s3):  # noqa: F811
    """Three nodes, which have the server's address and credentials in their environment."""
    with nodes(3) as made:
        yield made


def until(reached, command):
    """Wait until something holds while a command runs."""
    while not reached():
        assert not command.ended(), command.done()
        time.sleep(0.02)


def records(bucket):  # noqa: F811
    """The names of the records of scenes that are done, or that failed."""
    return [name for name in names(bucket, f"out/{RECORDS}") if name.endswith(".json")]


def results(bucket):  # noqa: F811
    """The files of results in a bucket below ``out/``, the records of what is done, and the report."""
    files, unfinished = held(bucket)
    assert not unfinished
    below = {name.removeprefix("out/"): content for name, content in files.items() if name.startswith("out/")}
    report = [json.loads(line) for line in below.pop("report.jsonl", b"").splitlines()]
    records = {name: below.pop(name) for name in list(below) if name.startswith(RECORDS)}
    done = {name: record for name, record in records.items() if name.endswith(".json") and b'"error"' not in record}
    return below, done, report


def test_each_scene_is_done_once_though_a_node_and_the_driver_die(folder, alone, cluster, bucket):  # noqa: F811
    """Every result is that of a process by itself, none is missing, and what was done before is not done again."""
    for path in folder.rglob("*.tif"):
        put(f"{bucket}in/{path.relative_to(folder)}", path)
    put(f"{bucket}in/day0/broken.tif", b"II*\0 nothing")
    shown = next(one.text for one in all_blocks("shell") if one.page == "clusters.md")
    shown = shown.replace("s3://bucket/scenes/", f"{bucket}in/").replace("s3://bucket/", bucket)
    arguments = [*shown.replace("10.0.0.1:6379", cluster.address).split()[2:], "--ray-cpus", "1"]
    first = Command(*arguments)
    until(lambda: len(records(bucket)) >= SCENES // 5, first)
    cluster.kill()
    until(lambda: len(records(bucket)) >= SCENES // 3, first)
    first.kill()
    _, before, _ = results(bucket)
    assert len(before) < SCENES

    status, printed, errors = Command(*arguments).done()

    assert (status, "broken.tif: " in errors) == (1, True), errors
    (count,) = map(int, re.findall(rf"(\d+) of {SCENES + 1} scenes are done already", errors))
    assert len(before) <= count <= SCENES  # workers may do more before they know that their driver is dead
    assert len(printed.splitlines()) == SCENES - count
    files, done, report = results(bucket)
    assert files == alone
    assert {name: done[name] for name in before} == before
    assert len({line["scene"] for line in report}) == len(report) == SCENES + 1
    for line in report:
        assert bool(line.get("error")) == line["scene"].endswith("broken.tif")
        for file in line.get("files", []):
            content = files[file["address"].removeprefix(f"{bucket}out/")]
            assert (len(content), hashlib.sha256(content).hexdigest()) == (file["nbytes"], file["sha256"])


def test_a_scene_that_is_cut_for_several_nodes_is_that_of_one_run(cluster, folder, engine, tmp_path):
    """Its windows are rows of their own, whose results are joined and removed; a second start has nothing to do."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/7.tif").write_bytes((folder / "day1/7.tif").read_bytes())
    cut = ("--tile", "128", "--overlap", "32", "--output", "probabilities")
    arguments = (MODEL, f"{tmp_path}/in/", "-o", tmp_path / "out", *cut, "--ray", cluster.address, "--ray-cpus", "1")
    status, printed, errors = Command(*arguments, "--ray-split", "300", "--ray-workers", "1").done()
    assert (status, printed) == (0, f"{tmp_path}/out/7.tif\n"), errors
    params = OutputParams(tile=128, overlap=32, output="probabilities", path=str(tmp_path / "alone.tif"))
    engine.generate(str(tmp_path / "in/7.tif"), params, use_tqdm=False)
    assert (tmp_path / "out/7.tif").read_bytes() == (tmp_path / "alone.tif").read_bytes()
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert sorted(path.suffix for path in left) == [".json", ".jsonl", ".tif"]
    again = Command(*arguments).done()
    assert again[:2] == (0, "")
    assert "1 of 1 scenes are done already" in again[2]


def test_a_pipeline_has_each_scenes_result_or_its_error(cluster, folder, alone, tmp_path, capsys):
    """Columns stay; a row's own options count; results are bytes of a file, or files where a path says so."""
    from vllm_mmout import ray as ours

    rows = [{"scene": str(folder / "day1/1.tif"), "options": "{}", "id": 1},
            {"scene": str(folder / "day2/2.tif"), "options": '{"window": [0, 0, 64, 96]}', "id": 2}]  # fmt: skip
    with connected(cluster.address):
        dataset = ray.data.from_items(rows)
        found = {row["id"]: row for row in ours.predict(dataset, MODEL, workers=1, num_cpus=1).iter_rows()}
        (tmp_path / "scenes").mkdir()
        (tmp_path / "scenes/a.tif").write_bytes((folder / "day1/1.tif").read_bytes())
        (page,) = [one.text for one in all_blocks("python") if one.page == "clusters.md"]
        exec(page.replace('"scenes/', f'"{tmp_path}/scenes/').replace('"water/', f'"{tmp_path}/water/'), {})  # noqa: S102
    assert (found[1]["output"], found[1]["format"], found[1]["error"]) == (alone["day1/1.tif"], "tiff", None)
    with rasterio.MemoryFile(found[2]["output"]) as memory, memory.open() as part:
        assert part.shape == (64, 96)
    printed = sorted(capsys.readouterr().out.splitlines())[-2:]
    assert printed[0] == f"1 {tmp_path}/water/a.tif None"
    assert printed[1].startswith("2 None no such file")
    assert (tmp_path / "water/a.tif").read_bytes() == alone["day1/1.tif"]
