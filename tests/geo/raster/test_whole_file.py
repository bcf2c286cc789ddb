"""Files that appear only when they are whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.atomic import atomic_file


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    """While it is written there is no file of that name, afterwards only that one."""
    target = tmp_path / "result.bin"
    with atomic_file(target) as part:
        part.write_bytes(b"result")
        assert not target.exists()
    assert target.read_bytes() == b"result"
    assert [path.name for path in tmp_path.iterdir()] == ["result.bin"]


def write_and_raise(target: Path, error: BaseException) -> None:
    with atomic_file(target) as part:
        part.write_bytes(b"half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_nothing_is_left(tmp_path: Path, error: type[BaseException]) -> None:
    """The temporary file goes, the older file stays, the error passes through."""
    target = tmp_path / "result.bin"
    target.write_bytes(b"older")
    with pytest.raises(error):
        write_and_raise(target, error())
    assert target.read_bytes() == b"older"
    assert [path.name for path in tmp_path.iterdir()] == ["result.bin"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The error names the folder and says to make it."""
    with (
        pytest.raises(SaveError, match=r"there is no folder .*results; make it first"),
        atomic_file(tmp_path / "results/a.png"),
    ):
        pytest.fail("nothing may be written")


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    """The name of a folder needs a file name behind it."""
    with pytest.raises(SaveError, match="it is a folder; add a file name"), atomic_file(tmp_path):
        pytest.fail("nothing may be written")


def test_what_the_system_refuses_is_a_save_error(tmp_path: Path) -> None:
    """An OSError during writing becomes a SaveError with the system's words."""
    with pytest.raises(SaveError, match="File name too long"), atomic_file(tmp_path / ("x" * 250)) as part:
        part.write_bytes(b"")
    with pytest.raises(SaveError, match="No space left"):
        write_and_raise(tmp_path / "a", OSError(28, os.strerror(28)))
    assert list(tmp_path.iterdir()) == []


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    """The file is readable for whom a plain open() would make it readable."""
    (tmp_path / "plain").write_bytes(b"")
    with atomic_file(tmp_path / "whole") as part:
        part.write_bytes(b"")
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode
