"""Each wing's folder can be deleted: the core, and the other wings, go on without it.

That no module of the core names a wing's is the graph's test; here a copy of the package runs without the folder.
"""

from __future__ import annotations

import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import forked_python
import pytest

import vllm_mmout.wings

ROOT = Path(__file__).resolve().parents[1]
WINGS = [folder.name for folder in pkgutil.iter_modules(vllm_mmout.wings.__path__)]
LOOK = """
import importlib, pkgutil, sys
import vllm_mmout
from vllm_mmout.cli import main
from vllm_mmout.models.model_folders import of_wings
from vllm_mmout.registry.registration import is_of_family
from vllm_mmout.wing import extensions, failures, wings

folder, *gone = sys.argv[1:]
assert vllm_mmout.__file__.startswith(folder), vllm_mmout.__file__
assert not {*gone} & {wing.name for wing in wings()}
assert not failures()
for point in ("hooks", "command"):
    list(extensions(point))
print("models", *of_wings())
print("io_plugin:", is_of_family("io_plugin:any"))
missing = set()
for module in pkgutil.walk_packages(vllm_mmout.__path__, "vllm_mmout."):
    assert module.name not in [f"vllm_mmout.wings.{wing}" for wing in gone]
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing.add((error.name or "").partition(".")[0])
print("missing", *sorted(missing))
main(["processors"])
main(["--help"])
"""
"""Imports every module that is left, in an interpreter that has no engine: what else is missing is a fault."""

BROUGHT_BY_THE_ENGINE = {"torch", "vllm", "transformers", "fastapi", "prometheus_client", "safetensors", "zmq"}


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """Return a function that makes a folder with this package, and its tests, but for some wings."""
    made = {}

    def copied(gone):
        if gone not in made:
            made[gone] = folder = tmp_path_factory.mktemp("without")
            for name in ("vllm_mmout", "tests"):
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
                for wing in gone:
                    shutil.rmtree(folder / name / "wings" / wing)
            for entry in ROOT.iterdir():
                if entry.name not in ("vllm_mmout", "tests", ".git"):
                    (folder / entry.name).symlink_to(entry)
        return made[gone]

    return copied


def ran(folder, *arguments, **environment):
    """What a fresh interpreter does in which the package is the one in a folder."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "MMOUT_TESTS_BEGIN_UNTIL": "inf", "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.heavy
@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(tuple(WINGS), id="all"),
        *(pytest.param((wing,), id=wing, marks=pytest.mark.slow) for wing in WINGS),
    ],
)
def test_what_is_left_can_be_imported_and_run(without, gone):
    """All modules of the core and of the other wings are imported; the command line has the commands that are left."""
    folder, left = without(gone), {*WINGS} - {*gone}
    blocked = "import sys\nfor name in ('torch', 'vllm', 'transformers'): sys.modules[name] = None\n"
    done = ran(folder, "-c", blocked + LOOK, folder, *gone)
    assert (done.returncode, done.stderr) == (0, "")
    seen = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert set(seen["missing"].split()) <= {*BROUGHT_BY_THE_ENGINE, "greenlet", "ray", "snac", "terratorch"}
    assert seen["io_plugin:"] == str("io_plugins" in left)
    assert ("Terratorch" in seen["models"]) is ("terratorch" in left)
    assert ("vq_image" in seen) is ("tokens" in left)
    assert "segmentation" in seen
    assert ("    submit" in done.stdout) is ("jobs" in left)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("wing", WINGS)
def test_the_hook_table_holds_without_it(without, wing):
    """``vllm-mmout doctor`` finds nothing wrong, and lists what is left."""
    folder = without((wing,))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = forked_python.run(["-m", "vllm_mmout.cli", "doctor"], env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if "wings:" in line)
    assert set(line.partition("wings: ")[2].split(", ")) == set(WINGS) - {wing}


EVERYTHING = os.environ.get("MMOUT_LONG") == "1"
CHOSEN = ("tests",) if EVERYTHING else ("tests/registry", "tests/test_wing.py")
"""What is run of what is left; all that needs no engine with ``MMOUT_LONG=1``."""
OF_THE_WHOLE = ("packaging", "docs", "wings_taken_off")
"""Tests of setup.cfg and of pages, which name every wing."""


@pytest.mark.slow
@pytest.mark.parametrize("wing", WINGS)
def test_the_tests_of_what_is_left_pass(without, wing):
    """Those of ``make check``: of the core, and of the other wings."""
    folder = without((wing,))
    marked = ("-m", "not engine and not slow and not heavy", "-p", "no:cacheprovider", "-p", "no:xdist", "-q")
    ignored = [f"--ignore=tests/test_{name}.py" for name in OF_THE_WHOLE]
    done = ran(folder, "-m", "pytest", *marked, *ignored, *CHOSEN, HYPOTHESIS_PROFILE="check")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert " passed" in done.stdout
