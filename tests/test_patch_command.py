"""``vllm-mmout patch``: all files of a vLLM, or none; each reverted byte for byte."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from vllm_mmout.cli import main
from vllm_mmout.commands import patch

RELEASE = "0.0.7"
FILES = {"vllm/__init__.py": "first\n", "vllm/v1/engine.py": "one\ntwo\nthree\n", "vllm/other.py": "left alone\n"}
VERSION = f"__version__ = version = '{RELEASE}+cpu'\n__commit_id__ = commit_id = 'g1'\n"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> None:
    """Run git, as somebody."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM of three files, and a series of two patches that both change one of them."""
    repository = tmp_path / "repository"
    repository.mkdir()
    for name, text in {**FILES, "vllm/_version.py": VERSION}.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(text)
    shutil.copytree(repository, tmp_path / "vLLM of a user")
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "release")
    for changed in (
        {"vllm/v1/engine.py": "one\n2\nthree\n"},
        {"vllm/v1/engine.py": "one\n2\n3\n", "vllm/__init__.py": "1st\n"},
    ):
        for name, text in changed.items():
            (repository / name).write_text(text)
        git(repository, "commit", "-qam", "change")
    git(repository, "format-patch", "-q", "--full-index", "-o", str(tmp_path / f"patches/v{RELEASE}"), "HEAD~2")
    monkeypatch.setattr(patch, "FOLDERS", (tmp_path / "patches",))
    return tmp_path / "vLLM of a user"


def contents(sources: Path) -> dict[str, str]:
    return {name: (sources / name).read_text() for name in FILES}


def said(capsys: pytest.CaptureFixture[str], sources: Path, *arguments: str) -> tuple[int, str]:
    """Exit status of the command, and all that it printed."""
    status = main(["patch", "--sources", str(sources), *arguments])
    out, err = capsys.readouterr()
    return status, out + err


def test_applied_and_reverted(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each action says what is; a second time it says that it is so already."""
    where = f"for vLLM {RELEASE} in {sources}\n"
    not_applied = (0, f"the patches for vLLM {RELEASE} are not applied in {sources}\n")
    applied = (0, f"the patches for vLLM {RELEASE} are applied in {sources}\n")
    assert said(capsys, sources, "--check") == (0, f"the patches for vLLM {RELEASE} can be applied in {sources}\n")
    assert said(capsys, sources, "--revert") == not_applied
    assert said(capsys, sources, "--apply") == (0, f"applied 2 patches {where}")
    assert contents(sources) == {**FILES, "vllm/v1/engine.py": "one\n2\n3\n", "vllm/__init__.py": "1st\n"}
    assert said(capsys, sources, "--apply") == applied
    assert said(capsys, sources, "--check") == applied
    assert said(capsys, sources, "--revert") == (0, f"reverted 2 patches {where}")
    assert contents(sources) == FILES


@pytest.mark.parametrize("action", ["--check", "--apply", "--revert"])
@pytest.mark.parametrize("applied", [False, True])
def test_a_changed_file_is_named_and_nothing_is_written(
    sources: Path,
    capsys: pytest.CaptureFixture[str],
    action: str,
    applied: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Whether the patches are applied or not, and even where every hunk would fit."""
    if applied:
        said(capsys, sources, "--apply")
    with (sources / "vllm/__init__.py").open("a") as file:
        file.write("a line of the user's own\n")
    before = contents(sources)
    status, told = said(capsys, sources, action)
    assert status == 1
    assert "was changed, nothing was written: vllm/__init__.py; install" in told
    assert contents(sources) == before


def test_a_file_that_is_missing_is_named(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As one that was changed."""
    (sources / "vllm/v1/engine.py").unlink()
    status, told = said(capsys, sources, "--apply")
    assert (status, "vllm/v1/engine.py;" in told) == (1, True)
    assert (sources / "vllm/__init__.py").read_text() == FILES["vllm/__init__.py"]


def test_a_release_without_patches_is_named(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With those that there are; a checkout that does not say what it is gets its release from the user."""
    assert said(capsys, sources, "--check", "--release", "0.0.8")[0] == 1
    status, told = said(capsys, sources, "--apply", "--release", "0.0.8")
    assert (status, told.splitlines()[0].split(";")[0]) == (
        1,
        f"vllm-mmout: there are no patches for vLLM 0.0.8 (there are for {RELEASE})",
    )
    (sources / "vllm/_version.py").unlink()
    assert said(capsys, sources, "--apply")[0] == 2
    assert said(capsys, sources, "--apply", "--release", RELEASE)[0] == 0


def test_a_check_says_that_the_patches_cannot_be_applied(
    sources: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A series that git cannot apply has exit status 1, and nothing is written."""
    (series,) = (tmp_path / f"patches/v{RELEASE}").glob("0002*")
    series.write_text(series.read_text().replace(" one\n", " uno\n"))
    status, told = said(capsys, sources, "--check")
    assert (status, f"{series.name} does not fit" in told) == (1, True)
    assert contents(sources) == FILES


def test_a_folder_without_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says which folder is meant."""
    status, told = said(capsys, tmp_path, "--check")
    assert (status, "name the folder above it" in told) == (2, True)


def test_the_series_of_the_project_say_what_they_change() -> None:
    """Each has its five patches with full hashes, and at most some 150 lines more."""
    series = sorted((Path(patch.__file__).parents[2] / "patches").glob("v*"))
    assert [folder.name for folder in series] == ["v0.32.0", "v0.33.0"]
    for folder in series:
        patches = sorted(folder.glob("*.patch"))
        before, after = patch._hashes(patches)
        assert len(patches) == 5
        assert all(len(found) == 40 for found in (*before.values(), *after.values()))
        lines = [line for path in patches for line in path.read_text().splitlines()]
        assert sum(line.startswith("+") and not line.startswith("+++") for line in lines) <= 160
