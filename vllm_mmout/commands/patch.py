"""``vllm-mmout patch``: adds the extension point for output processors to vLLM's own sources, or removes it.

``patches/`` holds a series of patches for each release. A patch records the hash of each file before and after it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_mmout.commands import Subparsers
from vllm_mmout.errors import MMOutError, OptionError
from vllm_mmout.geo import atomic_file

FOLDERS = (Path(__file__).parents[2] / "patches", Path(sys.prefix) / "share/vllm-mmout/patches")
"""Folders where the patches of vLLM may be: beside the package in a source checkout, or where the wheel installs
them."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the ``patch`` command and its arguments to the program's parser."""
    parser = subparsers.add_parser(
        "patch",
        help="add our extension point to vLLM's own sources, or remove it",
        description="Patch vLLM, so that its engines need no hooks: all files, or none.",
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="exit status 0 if they are applied or can be, else 1")
    action.add_argument("--apply", action="store_true", help="apply them")
    action.add_argument("--revert", action="store_true", help="remove them and restore every file")
    parser.add_argument("--sources", type=Path, metavar="FOLDER", help="folder of vllm/; default: the installed vLLM")
    parser.add_argument("--release", metavar="VERSION", help="for sources that do not state it, such as a checkout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Apply, revert or check the patches of vLLM's sources, and return the exit status."""
    sources = _sources(options.sources)
    release = options.release or _release(sources)
    series = _series(release)
    original, patched = _hashes(series)
    hashes = {name: _hash(sources / name) for name in original}
    if hashes in (original, patched):
        applied = hashes == patched
        if options.check and not applied:
            _check_fits(sources, list(hashes), series)
            print(f"the patches for vLLM {release} can be applied in {sources}")
            return 0
        if options.check or options.apply is applied:
            print(f"the patches for vLLM {release} are {'' if applied else 'not '}applied in {sources}")
            return 0
        _write(sources, list(hashes), series, patched=not applied)
        print(f"{'reverted' if applied else 'applied'} {len(series)} patches for vLLM {release} in {sources}")
        return 0
    unknown = [name for name in hashes if hashes[name] not in (original[name], patched[name])]
    changed = ", ".join(unknown or [name for name in hashes if hashes[name] == patched[name]])  # or partly patched
    raise MMOutError(
        f"vLLM {release} in {sources} was changed, nothing was written: {changed}; install that release again"
    )


def _sources(folder: Path | None) -> Path:
    if folder is not None:
        if not (folder / "vllm/__init__.py").is_file():
            raise OptionError(f"{folder} holds no vllm/; name the folder above it", param="sources")
        return folder.resolve()
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise OptionError("no vLLM is installed; install one, or name the folder of its sources by --sources")
    return Path(spec.origin).resolve().parents[1]


def _release(sources: Path) -> str:
    file = sources / "vllm/_version.py"
    match = re.search(r"^__version__ = .*?'([^'+\n]+)", file.read_text(), re.MULTILINE) if file.is_file() else None
    if match is None:
        raise OptionError(f"{sources} does not say which vLLM it is; name it, as in --release 0.32.0", param="release")
    return match[1]


def _series(release: str) -> list[Path]:
    for folder in FOLDERS:
        if series := sorted((folder / f"v{release}").glob("*.patch")):
            return series
    releases = sorted({path.parent.name.removeprefix("v") for folder in FOLDERS for path in folder.glob("v*/*.patch")})
    raise MMOutError(
        f"there are no patches for vLLM {release} (there are for {', '.join(releases)}); patches/README.md says how to"
        " make them. The hooks work without"
    )


def _hashes(series: list[Path]) -> tuple[dict[str, str], dict[str, str]]:
    """Return two dicts {file: git hash} for the files to patch: the first before the patches, the second after."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for path in series:
        changes = re.findall(r"^diff --git a/(\S+) .*\nindex (\w+)\.\.(\w+)", path.read_text(), re.MULTILINE)
        for name, old, new in changes:
            before.setdefault(name, old)
            after[name] = new
    return before, after


def _hash(file: Path) -> str:
    data = file.read_bytes() if file.is_file() else b""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _check_fits(sources: Path, names: list[str], series: list[Path]) -> None:
    """Raise an error if git cannot apply the patches ``series``, or if a file to patch is in a read-only folder.

    ``names`` are the files that the patches change, relative to the folder ``sources``.
    """
    with _patched(sources, names, series, patched=True):
        pass
    for folder in {(sources / name).parent for name in names}:
        if not os.access(folder, os.W_OK):
            raise MMOutError(f"the patches cannot be applied: {folder} is not writable; run as a user who may write it")


def _write(sources: Path, names: list[str], series: list[Path], *, patched: bool) -> None:
    """Write the files ``names`` with the patches applied or reverted. If a patch fails, leave all files unchanged."""
    with _patched(sources, names, series, patched=patched) as folder:
        for file in names:
            with atomic_file(sources / file) as part:
                shutil.copy(folder / file, part)


@contextmanager
def _patched(sources: Path, names: list[str], series: list[Path], *, patched: bool) -> Iterator[Path]:
    """Copy the files ``names`` to a temporary folder, apply or revert the patches there, and yield the folder.

    The patches are applied if ``patched`` is True, and otherwise reverted in reverse order. ``names`` are relative to
    ``sources``. The folder is removed when the ``with`` block ends.
    """
    with tempfile.TemporaryDirectory(prefix="mmout-patch-") as name:
        folder = Path(name)
        for file in names:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(sources / file, folder / file)
        for patch in series if patched else reversed(series):
            _git_apply(folder, patch, *([] if patched else ["-R"]))
        yield folder


def _git_apply(folder: Path, patch: Path, *options: str) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    try:
        subprocess.run(  # noqa: S603 - the user's git
            ["git", "apply", "--whitespace=nowarn", *options, str(patch.resolve())],  # noqa: S607
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError as error:
        raise MMOutError("git is needed to read the patches; install it") from error
    except subprocess.CalledProcessError as error:
        raise MMOutError(f"{patch.name} does not fit: {error.stderr.strip()}") from error
