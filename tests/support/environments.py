"""Environments of other people, made in seconds: packages of the running one, hard-linked into a new venv."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SITE = Path(sysconfig.get_paths()["purelib"])


@dataclass(frozen=True)
class Environment:
    """A virtual environment with a pip of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin/python"

    def run(self, *command: str | Path, cwd: Path, timeout: float = 1800) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment (``bin/...``) that sees nothing of the running one."""
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        return subprocess.run(
            [str(self.folder / command[0]), *map(str, command[1:])],
            cwd=cwd,
            env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def pip(self, *arguments: str | Path) -> str:
        """Run the environment's pip outside every checkout, and return what it prints."""
        done = self.run("bin/python", "-m", "pip", *arguments, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def freeze(self) -> dict[str, str]:
        """Every package and its version or source, pip and setuptools included."""
        lines = self.pip("freeze", "--all").splitlines()
        return {line.replace(" @ ", "==").split("==")[0]: line for line in lines}


def needed_by(*requirements: str) -> dict[str, Distribution]:
    """The installed distributions that the requirements bring, themselves included; absent ones are left out."""
    found: dict[str, Distribution] = {}
    pending = [Requirement(text) for text in requirements]
    seen = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # another platform's, or one that the set-up removed
        extras = ("", *requirement.extras)
        pending += [
            needed
            for needed in map(Requirement, found[name].requires or ())
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return found


@contextmanager
def environment_with(distributions: Iterable[Distribution], temporary: Path) -> Iterator[Environment]:
    """Make an environment that holds these distributions and pip, and remove it at the end.

    A hard link shares a file's content, not its name: pip removes and replaces names, so that the running environment
    stays as it is. Links need one file system: the environment lies in ``temporary`` if that is on the same one as the
    running environment, else inside that.
    """
    place = temporary if temporary.stat().st_dev == SITE.stat().st_dev else sys.prefix
    with tempfile.TemporaryDirectory(dir=place, prefix="venv-for-test-") as folder:
        venv.create(folder, symlinks=True, with_pip=False)
        (site,) = Path(folder).glob("lib/python3*/site-packages")
        for dist in (*distributions, distribution("pip")):
            for file in dist.files or ():
                target = Path(os.path.normpath(site / file))
                # Commands name the interpreter that they were installed for, and nothing here calls them.
                if target.parent != Path(folder, "bin"):
                    _link(SITE / file, target)
        yield Environment(Path(folder))


def _link(source: Path, target: Path) -> None:
    if source.exists() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)


def repack(dist: Distribution, folder: Path) -> None:
    """Write the wheel that an installed distribution came from, for an installation without a network."""
    info = f"{canonicalize_name(dist.name).replace('-', '_')}-{dist.version}.dist-info"
    rows, wheel_tags = [], []
    packed = folder / "in-work.whl"
    with zipfile.ZipFile(packed, "w") as wheel:
        for file in dist.files or ():
            path = PurePosixPath(file)
            if path.parts[0] == ".." or path.suffix == ".pyc" or path.name in {"RECORD", "INSTALLER", "REQUESTED"}:
                continue
            if path.name == "WHEEL":
                lines = file.read_text().splitlines()
                wheel_tags = [line.removeprefix("Tag: ").split("-") for line in lines if line.startswith("Tag: ")]
            name = str(path).replace(path.parts[0], info, 1) if path.parts[0].endswith(".dist-info") else str(path)
            wheel.write(SITE / file, name)
            rows.append((name, "", ""))
        record = io.StringIO()
        csv.writer(record).writerows([*rows, (f"{info}/RECORD", "", "")])
        wheel.writestr(f"{info}/RECORD", record.getvalue())
    tags = "-".join(".".join(sorted(set(part))) for part in zip(*wheel_tags, strict=True))
    packed.rename(folder / f"{info.removesuffix('.dist-info')}-{tags}.whl")
