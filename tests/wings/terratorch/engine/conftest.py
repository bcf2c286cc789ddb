"""Fixtures: model folders of TerraTorch with random weights, scenes, engines and a server, made once a session.

``make test-terratorch`` runs these tests where TerraTorch is installed; elsewhere they are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[3] / "examples/terratorch"
sys.path.insert(0, str(EXAMPLES))
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it would ask the network for its newest release

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]

FOREIGN = ("ignore", "error:::vllm_mmout")
"""Filters of warnings: TerraTorch and what it imports warn of much, while those of ours are errors as everywhere."""


def has_terratorch() -> bool:
    """Whether TerraTorch is installed; this folder, of the same name, is no package of that."""
    found = importlib.util.find_spec("terratorch")
    return found is not None and found.origin is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs TerraTorch where it is not, and bear its warnings where it is."""
    absent = None if has_terratorch() else pytest.mark.skip(reason="needs TerraTorch: make test-terratorch")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.filterwarnings(*FOREIGN))
            if absent is not None:
                item.add_marker(absent)


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four whole tiles of 224 pixels: int16, six bands, EPSG:32630."""
    from make_scene import make_scene

    return make_scene(tmp_path_factory.mktemp("scenes") / "scene.tif", 448)


@pytest.fixture(scope="session")
def scene_with_gaps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same scene with nodata in a corner and in single pixels."""
    from make_scene import make_scene

    return make_scene(tmp_path_factory.mktemp("scenes") / "gaps.tif", 448, nodata=True)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, scene: Path):
    """Makes the folder of a `Recipe`, each once; those of a segmentation of one image are centred on `scene`."""
    from make_model import make_model

    made: dict[object, Path] = {}

    def make(recipe) -> Path:
        if recipe not in made:
            centred = recipe.task == "segmentation" and recipe.frames == 1 and not recipe.terramind
            folder = tmp_path_factory.mktemp("models") / f"{recipe.task}-{recipe.classes}"
            made[recipe] = make_model(folder, recipe, scene if centred else None)
        return made[recipe]

    return make


@pytest.fixture(scope="session")
def flood(model_folder) -> Path:
    """Prithvi tiny, two classes, tiles of 224, with the data module of Sen1Floods11."""
    from make_model import Recipe

    return model_folder(Recipe())


@pytest.fixture(scope="session")
def start():
    """Starts an engine in this process: ``start(folder, dtype, processor)``, each once."""
    from engines_for_terratorch import started

    engines: dict[object, object] = {}

    def start_one(folder: Path, dtype: str = "float32", processor: str | None = None):
        key = (folder, dtype, processor)
        if key not in engines:
            engines[key] = started(*key)
        return engines[key]

    return start_one


@pytest.fixture(scope="session")
def server(flood: Path, scene: Path) -> Iterator[object]:
    """A server of `flood` with our IO Processor plugin, which may read the scene."""
    from serving import served

    flags = ("--dtype", "float32", "--io-processor-plugin", "mmout", "--allowed-local-media-path", str(scene.parent))
    with served(flood, *flags) as running:
        yield running


@pytest.fixture(scope="session")
def plain():
    """Makes the `Plain` of a folder and dtype, each once."""
    from plain_terratorch import Plain

    made: dict[object, Plain] = {}

    def make(folder: Path, dtype: str = "float32") -> Plain:
        if (folder, dtype) not in made:
            made[folder, dtype] = Plain(folder, dtype)
        return made[folder, dtype]

    return make
