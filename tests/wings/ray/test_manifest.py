"""What a run remembers of its scenes, and what it does with those that end whatever runs them."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

pytest.importorskip("obstore")
pytest.importorskip("ray.data")

from vllm_mmout import OutputParams
from vllm_mmout.cli import main
from vllm_mmout.errors import InputError, OptionError, SaveError
from vllm_mmout.geo import Window
from vllm_mmout.wings.ray import join
from vllm_mmout.wings.ray.cluster_run import names_of
from vllm_mmout.wings.ray.join import CutScene
from vllm_mmout.wings.ray.manifest import Manifest, SceneRecord
from vllm_mmout.wings.ray.predictor import MOST_STARTS, RECORD, Predictor, RunSettings
from vllm_mmout.wings.ray.setup import setup_key
from vllm_mmout.wings.ray.windows import ScenePart

pytestmark = [
    pytest.mark.heavy,  # Ray's import
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # of Ray itself
]


@pytest.fixture
def manifest(tmp_path):
    """Of a folder."""
    return Manifest(str(tmp_path / "out"), "water-index", OutputParams())


def stored(manifest, tmp_path, scene="a.tif"):
    """The record of a scene whose result is a file of five bytes."""
    (tmp_path / "made").write_bytes(b"bytes")
    record = SceneRecord(scene=scene, files=(manifest.objects.move_in(tmp_path / "made", "day/a.tif"),))
    manifest.write(record)
    return record


def test_a_scene_is_done_while_its_files_are_there(manifest, tmp_path):
    """One whose file is gone, or has another size, is run again; so is one with an error."""
    record = stored(manifest, tmp_path)
    assert manifest.find("a.tif", {}) == record
    file = Path(record.files[0].address)
    file.write_bytes(b"byte")
    assert manifest.find("a.tif", {}) is None
    file.unlink()
    assert manifest.find("a.tif", {}) is None
    manifest.write(SceneRecord(scene="a.tif", error="no such file"))
    assert manifest.find("a.tif", {}) is None


def test_another_run_has_records_of_its_own(manifest, tmp_path):
    """Another model, other options and other flags of the engine make other results."""
    stored(manifest, tmp_path)
    assert Manifest(manifest.out, "other", OutputParams()).find("a.tif", {}) is None
    assert Manifest(manifest.out, "water-index", OutputParams(overlap=8)).find("a.tif", {}) is None
    assert manifest.find("a.tif", {"window": [0, 0, 1, 1]}) is None
    other = Manifest(manifest.out, "water-index", OutputParams(), setup_key("water-index", ["--dtype", "bfloat16"]))
    assert other.find("a.tif", {}) is None
    assert copy.copy(other).key("a.tif", {}) == other.key("a.tif", {})


def test_a_setup_is_the_same_for_flags_that_mean_the_same(tmp_path):
    """Order, underscores, an equals sign and spaces in JSON do not matter. Values and files of flags do."""
    table = '{"mmout": {"class_names": ["land", "water"], "compile": true}}'
    shown = setup_key("m", ["--dtype", "bfloat16", "--enforce-eager", "--seed", "-1", "--additional-config", table])
    turned = '{ "mmout": {"compile":true, "class_names":["land","water"]} }'
    flags = [f"--additional_config={turned}", "--seed=-1", "--dtype=bfloat16", "--enforce_eager"]
    assert setup_key("m", flags) == shown
    others = (["--dtype", "float32"], ["--additional-config", table.replace("land", "soil")], [])
    keys = [shown, *(setup_key("m", other) for other in others)]
    flags_file = tmp_path / "flags.yaml"
    for text in ("seed: 1", "seed: 2"):
        flags_file.write_text(text)
        keys.append(setup_key("m", ["--config", str(flags_file)]))
    assert len(set(keys)) == len(keys)


def test_a_setup_changes_with_the_files_of_the_model(tmp_path):
    """JSON counts by its content, weights by size and time. Other files, and hidden ones, do not count."""
    model = tmp_path / "model"
    (model / "unet").mkdir(parents=True)

    def key_after(name, content, time=1):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(content)
        os.utime(model / name, (time, time))
        return setup_key(str(model), [])

    first = [key_after("config.json", "{}"), key_after("unet/w.safetensors", "abc")]
    same = [key_after("config.json", "{}", time=2), key_after("README.md", "words"), key_after(".cache/w.pt", "abc")]
    other = [key_after("config.json", "[]"), key_after("unet/w.safetensors", "abd", time=2), key_after("w.pt", "abcd")]
    assert set(same) == {first[1]}
    assert len({*first, *other}) == 5


def test_a_damaged_record_is_none(manifest, tmp_path):
    """The scene is run again."""
    stored(manifest, tmp_path)
    (path,) = (tmp_path / "out/.vllm-mmout").glob("*.json")
    path.write_bytes(b'{"scene": 5')
    assert manifest.find("a.tif", {}) is None


def test_a_report_has_a_line_for_each_scene(manifest, tmp_path):
    """And what was noted during the run is gone."""
    record = stored(manifest, tmp_path)
    for _ in range(3):
        manifest.count_start("run", "a.tif", {})
    assert manifest.start_count("run", "a.tif", {}) == 3
    report = Path(manifest.report([record]))
    assert msgspec.json.decode(report.read_bytes(), type=SceneRecord) == record
    assert not (tmp_path / "out/.vllm-mmout/runs").exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    """Before anything is run."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SaveError, match="cannot be made"):
        Manifest(str(tmp_path / "file/out"), "m", OutputParams()).find("a", {})


class Ending(Predictor):
    """Runs scenes by writing a file, and notes which went together; it has no engine."""

    def __init__(self):
        self.together = []

    def _run(self, scenes, params, may_be_empty):
        self.together.append(list(scenes))
        for scene, asked in zip(scenes, params, strict=True):
            Path(asked.path).mkdir()
            Path(asked.path, f"{Path(scene).stem}.tif").write_bytes(scene.encode())
        return [SimpleNamespace(error=None, outputs=None, assumed=()) for _ in scenes]


def batch(*scenes):
    """Rows as Ray gives them."""
    columns = {"scene": scenes, "name": [scene.partition(".")[0] for scene in scenes], "options": ["{}"] * len(scenes)}
    return {name: np.array(values, object) for name, values in columns.items()}


def test_what_was_begun_before_is_run_alone_and_given_up_in_the_end(manifest):
    """So that a scene which ends whatever runs it takes no other with it, and the run has an end."""
    job = RunSettings("water-index", OutputParams(), (), "scene", manifest, "run")
    for _ in range(MOST_STARTS):
        manifest.count_start("run", "bad.tif", {})
    manifest.count_start("run", "late.tif", {})
    actor = Ending.of(job)()
    found = actor(batch("a.tif", "bad.tif", "late.tif", "b.tif"))[RECORD]
    records = [msgspec.json.decode(record, type=SceneRecord) for record in found]
    assert actor.together == [["a.tif", "b.tif"], ["late.tif"]]
    assert [record.scene for record in records] == ["a.tif", "bad.tif", "late.tif", "b.tif"]
    assert [bool(record.error) for record in records] == [False, True, False, False]
    assert "ended 4 times" in records[1].error
    again = Ending.of(job)()
    assert list(again(batch("a.tif", "late.tif"))[RECORD]) == [found[0], found[2]]
    assert again.together == []


def test_results_are_named_after_their_scenes(tmp_path):
    """Below the folder that was named; two of one name are refused before anything is run."""
    for name in ("x/1.tif", "y/1.tif", "y/2.png", "y/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = names_of([f"{tmp_path}/"])
    assert found == {f"{tmp_path}/{name}": name.partition(".")[0] for name in ("x/1.tif", "y/1.tif", "y/2.png")}
    assert list(names_of(["https://host/a/3.tif?key=5"]).values()) == ["3"]
    folders = [tmp_path / f"HLS.{version}" for version in ("v2.0", "v2.1")]
    for folder in folders:
        folder.mkdir()
    assert list(names_of([str(folder) for folder in folders]).values()) == ["HLS.v2.0", "HLS.v2.1"]
    with pytest.raises(OptionError, match="several scenes are called 1"):
        names_of([f"{tmp_path}/x/1.tif", f"{tmp_path}/y/1.tif"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no scene below"):
        names_of([f"{tmp_path}/empty/"])


def test_a_joined_scene_has_the_assumptions_about_its_windows(manifest, tmp_path, monkeypatch):
    """Each sentence comes once."""
    monkeypatch.setattr(join, "joined", lambda *_: SimpleNamespace(save=lambda path: path.write_bytes(b"pixels")))
    parts = [ScenePart(window, window) for window in (Window(0, 0, 1, 1), Window(0, 1, 1, 1))]
    scene = CutScene("a.tif", "a", (1, 2), parts)
    for (_, options), sentences in zip(scene.rows(), (("one.", "two."), ("two.", "three.")), strict=True):
        scene.add_record(msgspec.structs.replace(stored(manifest, tmp_path), options=options, assumed=sentences))
    record = scene.joined(SimpleNamespace(call=lambda _, function, *args: function(*args)), manifest, "run")
    assert record.assumed == ("one.", "two.", "three.")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ray-split", "100"], "--ray-split is for a run on a cluster; add --ray"),
        (["--ray", "--ray-split", "0"], "--ray-split must be 1 or more pixels, got 0"),
        (["--ray", "--mmout-trace", "t.json"], "--mmout-trace works only in one process"),
        (["--ray", "--each-day"], "--each-day works only in one process"),
        (["--ray", "--ray-split", "9", "--stac-item"], "--stac-item does not work with --ray-split"),
        (["--ray", "--stac", "--datetime", "2024"], "--ray with --stac, --datetime is not supported"),
        (["--ray", "--max-items", "1"], "--ray with --max-items is not supported"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags, said, capsys, tmp_path):
    """With exit status 2."""
    assert main(["run", "water-index", "in/", "-o", str(tmp_path / "out"), *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_list_of_items_is_refused(tmp_path, capsys):
    """Each input of a cluster has one result."""
    item = {"type": "Feature", "stac_version": "1.0.0"}
    (tmp_path / "items.json").write_text(json.dumps({"type": "FeatureCollection", "features": [item, item]}))
    (tmp_path / "item.json").write_text(json.dumps(item))
    inputs = [f"{tmp_path}/item.json", f"{tmp_path}/items.json"]
    assert main(["run", "water-index", *inputs, "-o", f"{tmp_path}/out", "--ray"]) == 2
    assert f"{tmp_path}/items.json is a list of 2 items, and --ray takes one scene" in capsys.readouterr().err
