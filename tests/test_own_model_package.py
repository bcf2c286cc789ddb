"""The example of a package of one's own, installed beside the running environment as a stranger installs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import venv
from pathlib import Path

import numpy as np
import pytest
from environments import SITE, Environment
from processes import ONE_THREAD, left_running, new_mark

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/own_model"
USE = """\
import json, os, sys
import numpy as np, torch
from safetensors.torch import load_file
from vllm import LLM
from vllm.v1.engine.core_client import SyncMPClient
from vllm_mmout import OutputParams

if __name__ == "__main__":
    assert not any(name.startswith("green_cover") for name in sys.modules)
    llm = LLM("model")
    assert isinstance(llm.llm_engine.engine_core, SyncMPClient)
    llm.generate("scene.tif", OutputParams(path="percent.tif"))
    np.save("share.npy", llm.generate("scene.tif", OutputParams(output="share"))[0].outputs.array)

    import green_cover.model
    model = green_cover.model.GreenCover(json.load(open("model/config.json")))
    model.load_state_dict(load_file("model/model.safetensors"))
    with torch.inference_mode():
        np.save("expected.npy", model(torch.from_numpy(np.load("scene.npy"))[None])[0].numpy())
    print("from", os.path.dirname(green_cover.__file__))
"""

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment that sees the packages of the running one, with the example installed into it."""
    folder = tmp_path_factory.mktemp("strangers-environment")
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "running.pth").write_text(f"import site; site.addsitedir({str(SITE)!r})\n")
    environment = Environment(folder)
    sources = tmp_path_factory.mktemp("sources") / "green-cover"  # building leaves files beside the sources
    shutil.copytree(EXAMPLE, sources, ignore=shutil.ignore_patterns("__pycache__", ".*", "build", "*.egg-info"))
    environment.pip("install", "--no-index", "--no-deps", "--no-build-isolation", sources)
    return environment


@pytest.fixture(scope="module")
def place(environment, tmp_path_factory):
    """A folder that is empty but for the model's folder, which the package's command wrote, a scene and a script."""
    import rasterio

    place = tmp_path_factory.mktemp("empty")
    done = environment.run("bin/green-cover-model", "model", cwd=place)
    assert done.returncode == 0, done.stderr
    (place / "use.py").write_text(USE)
    pixels = np.random.default_rng(0).integers(0, 6000, (4, 60, 80), np.uint16)
    np.save(place / "scene.npy", pixels)
    grid = {"crs": "EPSG:32632", "transform": rasterio.Affine(10, 0, 500_000, 0, -10, 5_000_000)}
    with rasterio.open(
        place / "scene.tif", "w", driver="GTiff", dtype="uint16", count=4, height=60, width=80, **grid
    ) as scene:
        scene.write(pixels)
    return place


@pytest.fixture(scope="module")
def used(environment, place):
    """What the script said, and the mark by which its processes are known."""
    mark = new_mark()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", **ONE_THREAD, **mark}.items():
            patch.setenv(name, value)
        done = environment.run("bin/python", "use.py", cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout, mark


def test_the_model_has_at_most_thirty_lines():
    """The module of the model, imports and documentation with it."""
    assert len((EXAMPLE / "green_cover/model.py").read_text().splitlines()) <= 30


def test_knows_nothing_of_this_checkout():
    """No file of it names a folder of ours: it works wherever it is copied to."""
    for file in EXAMPLE.rglob("*.*"):
        if file.suffix in {".py", ".md", ".toml"}:
            assert not re.search(r"examples/|own_model|tests/support|\.\./", file.read_text()), file


def test_the_folder_names_no_class(place):
    """The entry point of the installed package is all that leads from the folder to the class."""
    config = json.loads((place / "model/config.json").read_text())
    assert config["architectures"] == ["GreenCover"]
    assert "mmout" not in config
    assert sorted(file.name for file in (place / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_the_installed_package_is_the_one_that_ran(environment, used):
    """The class came from the environment, not from the sources."""
    assert f"from {environment.folder}{os.sep}" in used[0]


@pytest.mark.usefixtures("used")
def test_gives_what_plain_pytorch_gives(place):
    """Without any flag, on an engine in processes of its own, every bit of float32 is that of plain PyTorch."""
    expected = np.load(place / "expected.npy")
    assert np.ptp(expected) > 0.5
    np.testing.assert_array_equal(np.load(place / "share.npy"), expected)


@pytest.mark.usefixtures("used")
def test_the_processor_made_a_raster_in_the_place_of_the_scene(place):
    """Percent are the rounded shares, in a GeoTIFF that lies on the input."""
    import rasterio

    with rasterio.open(place / "percent.tif") as percent, rasterio.open(place / "scene.tif") as scene:
        assert (percent.crs, percent.transform, percent.shape) == (scene.crs, scene.transform, scene.shape)
        assert (percent.nodata, percent.units, percent.descriptions) == (255, ("%",), ("green cover",))
        shares = np.load(place / "expected.npy")[0]
        np.testing.assert_array_equal(percent.read(1), np.rint(shares * np.float32(100)))


def test_nothing_is_left_running(used):
    """Once the script has ended none of the engine's processes is there."""
    assert left_running(used[1]) == []


def test_the_command_lists_its_processor(environment, place):
    """Any model can be given it by the name of its entry point."""
    done = environment.run("bin/python", "-m", "vllm_mmout.cli", "processors", cwd=place)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("cover-percent")]
    name, returns, outputs, origin = re.split(r"\s{2,}", line)
    assert (name, returns, outputs) == ("cover-percent", "raster", "percent, share")
    assert "package green-cover" in origin


def test_its_own_tests_pass(environment, tmp_path):
    """The tests that the author wrote pass where the package is installed, away from its sources."""
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLE / "pyproject.toml", tmp_path)
    done = environment.run("bin/python", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d{2} passed", done.stdout)
