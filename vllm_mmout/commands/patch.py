"""``vllm-mmout patch``: the seam of output processors put into vLLM's own sources, or taken out again.

A series of patches for each release lies in ``patches/``; it names each file as it is before and after, by its hash.
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
"""Where the series are: beside the package in a checkout, else where the wheel puts them."""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command's arguments."""
    parser = subparsers.add_parser(
        "patch",
        help="put our seam into vLLM's own sources, or take it out",
        description="Patch vLLM, so that no hook is needed around its engines: all files, or none.",
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="whether they are applied or can be: exit status 0, or 1")
    action.add_argument("--apply", action="store_true", help="apply them")
    action.add_argument("--revert", action="store_true", help="take them out; every file is as it was")
    parser.add_argument("--sources", type=Path, metavar="FOLDER", help="that holds vllm/; default: the installed vLLM")
    parser.add_argument("--release", metavar="VERSION", help="of sources that do not say it, as a checkout")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    sources = _sources(options.sources)
    release = options.release or _release(sources)
    series = _series(release)
    whole, patched = _hashes(series)
    found = {name: _hash(sources / name) for name in whole}
    if found in (whole, patched):
        applied = found == patched
        if options.check and not applied:
            _check_fits(sources, list(found), series)
            print(f"the patches for vLLM {release} can be applied in {sources}")
            return 0
        if options.check or options.apply is applied:
            print(f"the patches for vLLM {release} are {'' if applied else 'not '}applied in {sources}")
            return 0
        _write(sources, list(found), series, patched=not applied)
        print(f"{'reverted' if applied else 'applied'} {len(series)} patches for vLLM {release} in {sources}")
        return 0
    strange = [name for name in found if found[name] not in (whole[name], patched[name])]
    changed = ", ".join(strange or [name for name in found if found[name] == patched[name]])  # else some are patched
    raise MMOutError(
        f"vLLM {release} in {sources} was changed, nothing was written: {changed}; install that release anew"
    )


def _sources(named: Path | None) -> Path:
    if named is not None:
        if not (named / "vllm/__init__.py").is_file():
            raise OptionError(f"{named} holds no vllm/; name the folder above it", param="sources")
        return named.resolve()
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        raise OptionError("no vLLM is installed; install one, or name the folder of its sources by --sources")
    return Path(found.origin).resolve().parents[1]


def _release(sources: Path) -> str:
    file = sources / "vllm/_version.py"
    found = re.search(r"^__version__ = .*?'([^'+\n]+)", file.read_text(), re.MULTILINE) if file.is_file() else None
    if found is None:
        raise OptionError(f"{sources} does not say which vLLM it is; name it, as in --release 0.32.0", param="release")
    return found[1]


def _series(release: str) -> list[Path]:
    for folder in FOLDERS:
        if series := sorted((folder / f"v{release}").glob("*.patch")):
            return series
    known = sorted({path.parent.name.removeprefix("v") for folder in FOLDERS for path in folder.glob("v*/*.patch")})
    raise MMOutError(
        f"there are no patches for vLLM {release} (there are for {', '.join(known)}); patches/README.md says how to"
        " make them. The hooks work without"
    )


def _hashes(series: list[Path]) -> tuple[dict[str, str], dict[str, str]]:
    """The files that a series changes, with git's hashes of them before and after."""
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
    """Raise an error unless the patches can be applied: git reads them, and the folders can be written."""
    with _patched(sources, names, series, patched=True):
        pass
    for folder in {(sources / name).parent for name in names}:
        if not os.access(folder, os.W_OK):
            raise MMOutError(f"the patches cannot be applied: {folder} cannot be written; become a user who can")


def _write(sources: Path, names: list[str], series: list[Path], *, patched: bool) -> None:
    """Patch the files, or take the patches out of them; only when all is done are they put in place."""
    with _patched(sources, names, series, patched=patched) as folder:
        for file in names:
            with atomic_file(sources / file) as part:
                shutil.copy(folder / file, part)


@contextmanager
def _patched(sources: Path, names: list[str], series: list[Path], *, patched: bool) -> Iterator[Path]:
    """Yield a folder of copies of the files with the patches, or without them."""
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
