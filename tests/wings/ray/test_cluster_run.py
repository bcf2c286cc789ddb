"""A run of ``--ray`` from its scenes to its report, with what Ray schedules in this process and without a model."""

from __future__ import annotations

import argparse
import json
import os

import pytest

pytest.importorskip("obstore")
pytest.importorskip("ray.data")

import ray
from buckets import bucket, held, put, s3  # noqa: F401 - fixtures
from cluster_here import ClusterHere

from vllm_mmout import OutputParams
from vllm_mmout.errors import MMOutError
from vllm_mmout.wings.ray.cluster import Cluster
from vllm_mmout.wings.ray.cluster_run import ClusterRun
from vllm_mmout.wings.ray.driver_mark import NAME, DriverMark
from vllm_mmout.wings.ray.objects import Objects

pytestmark = [
    pytest.mark.heavy,  # Ray's import
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # of Ray itself
]


@pytest.fixture
def scenes(tmp_path):
    """Write files to a folder by their names, and return the folder."""

    def write(*names, content=b"pixels"):
        for name in names:
            (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "in" / name).write_bytes(content)
        return tmp_path / "in"

    return write


def made(folder, out, cluster, flags=()):
    """Make the run of a folder."""
    options = argparse.Namespace(
        inputs=[f"{folder}/"], out=str(out), model="water-index", engine_flags=[*flags], ray_split=None
    )
    return ClusterRun(options, OutputParams(), cluster)


def run(folder, out):
    """Run a folder; return the status, the lines of the report by name, and which scenes ran together."""
    cluster = ClusterHere()
    status = made(folder, out, cluster).status()
    lines = [json.loads(line) for line in (out / "report.jsonl").read_text().splitlines()]
    return status, {line["scene"].removeprefix(f"{folder}/"): line for line in lines}, cluster.log


def test_a_run_has_each_scene_and_goes_on_with_what_failed(scenes, tmp_path, capsys):
    """Results keep the folders of their scenes; a second start runs what failed alone."""
    folder = scenes("a.tif", "x/b.tif", "x/c.tif", "y/d.tif", "y/e.tif")
    scenes("y/e.tif", content=b"")
    status, report, _ = run(folder, tmp_path / "out")
    assert (status, report["y/e.tif"]["error"]) == (1, "the file is empty")
    names = ["a.tif", "x/b.tif", "x/c.tif", "y/d.tif"]
    assert all((tmp_path / "out" / name).read_bytes() == b"pixels" for name in names)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"{tmp_path}/out/{name}" for name in names]
    assert f"{folder}/y/e.tif: the file is empty\n1 of 5 scenes failed" in printed.err
    scenes("y/e.tif")
    assert run(folder, tmp_path / "out")[::2] == (0, [["e.tif"]])
    assert "4 of 5 scenes are done already" in capsys.readouterr().err
    assert sorted(path.suffix for path in (tmp_path / "out/.vllm-mmout").iterdir()) == [".json"] * 5


def test_the_report_has_what_was_assumed_about_a_scene(scenes, tmp_path, capsys):
    """Also after a second start, which runs nothing. Standard error has the number of such scenes."""
    folder = scenes("a.tif", "undated.tif")
    for _ in range(2):
        _, report, _ = run(folder, tmp_path / "out")
        assert [line.get("assumed") for line in report.values()] == [None, ["its date is unknown."]]
        assert f"something was assumed about 1 of 2 scenes, see {tmp_path}/out/report.jsonl" in capsys.readouterr().err


def test_other_flags_of_the_engine_run_all_scenes_again(scenes, tmp_path):
    """The same flags in another spelling do not."""
    folder = scenes("a.tif", "b.tif")
    ran = []
    for flags in (["--dtype", "float32"], ["--dtype=float32"], ["--dtype", "bfloat16"]):
        cluster = ClusterHere()
        made(folder, tmp_path / "out", cluster, flags).status()
        ran.append(cluster.log)
    assert ran == [[["a.tif", "b.tif"]], [], [["a.tif", "b.tif"]]]


def test_a_scene_that_ends_its_worker_takes_no_other_with_it(scenes, tmp_path):
    """The scene is given up after four starts. The scenes of its batch that wait behind it run all the same."""
    folder = scenes("a.tif", "b-ends.tif", "c.tif", "d.tif")
    for _ in range(2):
        status, report, together = run(folder, tmp_path / "out")
        assert status == 1
        assert [name for name, line in report.items() if "error" in line] == ["b-ends.tif"]
        assert "whatever ran this scene ended 4 times" in report["b-ends.tif"]["error"]
        assert sum(names == ["b-ends.tif"] for names in together) <= 4
    assert all((tmp_path / f"out/{name}.tif").is_file() for name in "acd")


@pytest.mark.parametrize("name", ["bad\nname.tif", "del\x7f.tif", b"latin-\xe4.tif"])
def test_a_name_that_no_store_takes_fails_its_own_scene(scenes, tmp_path, name, capsys):
    """The scene is a failed line of the report, also in a second run. The other scenes run."""
    folder = scenes("a.tif", "z.tif")
    (folder / os.fsdecode(name)).write_bytes(b"pixels")
    for _ in range(2):
        status, report, _ = run(folder, tmp_path / "out")
        assert status == 1
        (line,) = (line for line in report.values() if "error" in line)
        assert "which is not allowed in the name of a result; rename the scene" in line["error"]
        assert line["error"] in capsys.readouterr().err
    assert (tmp_path / "out/a.tif").is_file()
    assert (tmp_path / "out/z.tif").is_file()


def test_a_bucket_is_run_though_it_holds_keys_that_no_store_takes(bucket, capsys):  # noqa: F811
    """Each such key is a failed scene, and no two results have the same name."""
    for name in ("a.tif", "/a.tif", "x/../a.tif", "tab\ta.tif", "x/b.tif"):
        put(f"{bucket}in/{name}", b"pixels")
    assert made(f"{bucket}in", f"{bucket}out/", ClusterHere()).status() == 1
    files, _ = held(bucket)
    assert {name for name in files if name.endswith(".tif") and name.startswith("out/")} == {"out/a.tif", "out/x/b.tif"}
    assert [json.loads(line).get("error") is None for line in files["out/report.jsonl"].splitlines()].count(False) == 3
    said = capsys.readouterr().err
    assert f'{bucket}in//a.tif has an empty part of its path, or "." or ".."' in said
    assert "out/.vllm-mmout/driver" not in files


@pytest.fixture
def objects(tmp_path):
    """The folder of results."""
    return Objects(str(tmp_path / "out"))


def test_a_second_driver_of_a_folder_is_refused(objects):
    """The error names the first driver. Its mark is removed when it ends."""
    first = DriverMark(objects)
    with first.held():
        second = DriverMark(objects, wait=lambda _: first.renew())
        with pytest.raises(
            MMOutError, match=r"out/ is being written by another run: process \d+ on .+, which began at "
        ):
            second.held().__enter__()
        first.check()
    assert objects.read(NAME) is None


def test_the_mark_of_a_dead_driver_does_not_block(objects, capsys):
    """A mark that is not renewed for some seconds is taken over, and a damaged mark at once."""
    dead = DriverMark(objects)
    dead.renew()
    waited = []
    with DriverMark(objects, wait=waited.append).held():
        dead.renew()
        with pytest.raises(MMOutError, match="by another run"):
            dead.check()
    assert waited == [5.0] * 4
    assert "to see whether process" in capsys.readouterr().err
    objects.write(NAME, b"damaged")
    with DriverMark(objects, wait=waited.append).held():
        assert len(waited) == 4


def test_of_two_drivers_that_begin_at_once_one_ends(objects, tmp_path, scenes):
    """The run whose mark was overwritten ends before its next scene, with an error that names the other run."""
    folder = scenes("a.tif")
    first = made(folder, tmp_path / "out", ClusterHere())
    with first._mark.held():
        DriverMark(objects).renew()
        first._mark.renew()
        with pytest.raises(MMOutError, match="by another run"):
            first._status()


def test_a_run_that_ended_early_shows_the_innermost_message(monkeypatch):
    """Ray Data adds a cause without a message to errors of Ray itself."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    why = "the run ended before it was done, and can be started again: the head is gone"
    with pytest.raises(MMOutError, match=why), Cluster(None).connected():
        raise ray.exceptions.RayError("the head is gone") from Exception()
