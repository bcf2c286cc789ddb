"""Write a file and its sidecar files, or a folder, atomically, on the local disk or in a bucket."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.places import place_of


@contextlib.contextmanager
def atomic_file(target: str | PurePath, sidecars: Mapping[str, bytes | None] | None = None) -> Iterator[Path]:
    """Yield a path for a temporary file. After the ``with`` block, move the file to ``target`` and write ``sidecars``.

    For an address in a bucket, the temporary file is on this machine and is uploaded at the end. After an error the
    temporary file is removed, and files that existed before are unchanged.

    Args:
        target: path or address in a bucket.
        sidecars: content of each sidecar file by its name. For None, an existing sidecar file is removed.

    Raises:
        SaveError: the file cannot be written.

    """
    path = place_of(target)
    if not isinstance(path, Path):
        from vllm_mmout.geo.raster.remote.buckets.writing import uploaded

        with uploaded(path, sidecars or {}) as part:
            yield part
        return
    if path.is_dir():
        raise SaveError(f"cannot write {path}: it is a folder; add a file name")
    if not path.parent.is_dir():
        raise SaveError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    beside = {path.with_name(name): content for name, content in (sidecars or {}).items()}
    part = _hidden(path, "part")
    parts = {path: part}
    try:
        yield part
        for name, content in beside.items():
            if content is not None:
                parts[name] = _hidden(name, "part")
                parts[name].write_bytes(content)
        _exchange(parts, [name for name in beside if os.path.lexists(name) and not name.is_dir()])
    except OSError as error:
        raise SaveError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        for left in parts.values():
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: PurePath, may_replace: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``target`` when the ``with`` block ends.

    An existing folder is replaced only if ``may_replace`` returns True for it.

    After an error the temporary folder is removed, and a folder that existed before is unchanged.

    Args:
        target: local path of the folder.
        may_replace: function that returns whether an existing folder may be replaced.

    Raises:
        SaveError: the folder cannot be written, or ``target`` is something else that may not be replaced.

    """
    path = Path(target)
    if not path.parent.is_dir():
        raise SaveError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    if os.path.lexists(path) and not (path.is_dir() and may_replace(path)):
        raise SaveError(f"cannot write {path}: it is a file, or a folder with other files; choose another name")
    part, old = _hidden(path, "part"), _hidden(path, "old")
    try:
        part.mkdir()
        yield part
        with contextlib.suppress(FileNotFoundError):
            path.rename(old)
        try:
            part.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                old.rename(path)
            raise
    except OSError as error:
        raise SaveError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        for left in (part, old):
            shutil.rmtree(left, ignore_errors=True)


def _exchange(temporary_files: Mapping[Path, Path], to_delete: list[Path]) -> None:
    """Rename temporary files to their final names, and delete the files ``to_delete``. If a step fails, undo all steps.

    ``temporary_files`` is a dict: final name -> temporary file.
    """
    away: dict[Path, Path] = {}
    placed: list[Path] = []
    try:
        for name in to_delete:
            hidden = _hidden(name, "old")
            with contextlib.suppress(FileNotFoundError):  # removed by another writer of the same name
                os.replace(name, hidden)  # noqa: PTH105 - Path.replace is the same call, os.replace names the intent
                away[name] = hidden
        for name, part in temporary_files.items():
            if len(temporary_files) > 1 and name not in away and os.path.lexists(name) and not name.is_dir():
                with contextlib.suppress(FileNotFoundError):  # kept in case a later step fails
                    away[name] = _hide(name)
            os.replace(part, name)  # noqa: PTH105 - see the first os.replace
            placed.append(name)
    except BaseException:
        for name in placed:
            if name not in away:
                name.unlink(missing_ok=True)
        for name, hidden in away.items():
            os.replace(hidden, name)  # noqa: PTH105 - see the first os.replace
            hidden.unlink(missing_ok=True)  # os.replace does nothing if both are links to one file
        raise
    for hidden in away.values():
        with contextlib.suppress(OSError):
            hidden.unlink()


def _hide(name: Path) -> Path:
    """Back up a file under a hidden name, so that its replacement can be undone. Return the hidden path."""
    hidden = _hidden(name, "old")
    try:
        os.link(name, hidden, follow_symlinks=False)
    except OSError:
        os.replace(name, hidden)  # noqa: PTH105 - see the first os.replace
    return hidden


def _hidden(name: Path, kind: str) -> Path:
    return name.with_name(f".{name.name}.{secrets.token_hex(4)}.{kind}")
