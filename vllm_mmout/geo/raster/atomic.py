"""Files written whole or not at all, with the small ones that lie beside them."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.places import place_of


@contextlib.contextmanager
def atomic_file(target: str | PurePath, sidecars: Mapping[str, bytes | None] | None = None) -> Iterator[Path]:
    """Give a temporary name beside ``target``; what was written there is renamed to ``target`` at the end.

    Of an address in a bucket it is a name on this machine, and what was written there goes up at the end.

    With it come small files, ``sidecars``: suffix behind its name -> content; None: there shall be none. After an error
    the temporary file is gone, and files that were under the names before are still there.
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
    beside = {path.with_name(path.name + suffix): content for suffix, content in (sidecars or {}).items()}
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


def _exchange(parts: Mapping[Path, Path], old: list[Path]) -> None:
    """Give new files their names, the first one's first, and take old ones away: all of it, or nothing."""
    away: dict[Path, Path] = {}
    placed: list[Path] = []
    try:
        for name in old:
            hidden = _hidden(name, "old")
            with contextlib.suppress(FileNotFoundError):  # somebody else saves under the same name
                os.replace(name, hidden)  # noqa: PTH105 - Path.replace is the same call, this name says what matters
                away[name] = hidden
        for name, part in parts.items():
            if len(parts) > 1 and name not in away and os.path.lexists(name) and not name.is_dir():
                with contextlib.suppress(FileNotFoundError):  # kept, as what follows could fail
                    away[name] = _kept(name)
            os.replace(part, name)  # noqa: PTH105 - as above
            placed.append(name)
    except BaseException:
        for name in placed:
            if name not in away:
                name.unlink(missing_ok=True)
        for name, hidden in away.items():
            os.replace(hidden, name)  # noqa: PTH105 - as above
            hidden.unlink(missing_ok=True)  # two names of one file stay two
        raise
    for hidden in away.values():
        with contextlib.suppress(OSError):
            hidden.unlink()


def _kept(name: Path) -> Path:
    """A second name for a file, which keeps the first until another takes it; without links it is the only one."""
    hidden = _hidden(name, "old")
    try:
        os.link(name, hidden, follow_symlinks=False)
    except OSError:
        os.replace(name, hidden)  # noqa: PTH105 - as above
    return hidden


def _hidden(name: Path, kind: str) -> Path:
    return name.with_name(f".{name.name}.{secrets.token_hex(4)}.{kind}")
