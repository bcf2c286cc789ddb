# ruff: noqa: INP001 - the scripts are not a package
"""The tests of ``make test-patches``: each series of ``patches/`` is applied, tested and reverted.

The series of the installed vLLM is applied to a copy of links to it, which runs models. The series of other releases
are applied to their sources, and only the tests of the hooks run. After the revert, a copy must equal its original.

    python scripts/test_patches.py [ARGUMENTS OF PYTEST]
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import vllm
from engine_sources import ENGINES, SourcesError, fetch, say

ROOT = Path(__file__).resolve().parents[1]
SHORT = tuple(f"tests/engine/test_{name}.py" for name in ("native_seam", "text_untouched", "isolation_llm"))
TESTS = (
    *SHORT,
    *(f"tests/engine/test_{name}.py" for name in ("mixed_batches", "isolation_async", "picks", "request_errors")),
    *(f"tests/engine/test_{name}.py" for name in ("scenes", "scene_ends_async")),
    "tests/wings/io_plugins/test_io_plugin.py",
    "tests/wings/tokens/engine/test_token_requests.py",
)
"""Tests of requests, scenes, both kinds of engine, text, IO plugins and media of tokens. With ``CI``, use `SHORT`."""
HOOK_TESTS = ("tests/vllm_releases", "tests/properties/test_hooks.py")


def patch(action: str, sources: Path) -> str:
    """Run the patch command on sources and return its output. If the command fails, exit with its status."""
    command = [sys.executable, "-m", "vllm_mmout.cli", "patch", f"--{action}", "--sources", str(sources)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    say(f"patch --{action}: {(done.stdout + done.stderr).strip()}")
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each Python file by its path in the folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.py"))
    }


def run(sources: Path, tests: tuple[str, ...], arguments: list[str], **environment: str) -> int:
    """Run tests with a patched vLLM, and return the status of pytest."""
    path = os.pathsep.join(map(str, [sources, ROOT / "scripts"]))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests, *arguments]
    return subprocess.run(  # noqa: S603 - this interpreter's pytest
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **environment}, check=False
    ).returncode


def tested(original: Path, release: str, folder: Path, tests: tuple[str, ...], arguments: list[str]) -> bool:
    """Apply a series to a copy, run tests with it, revert it, and return whether all went well."""
    sources = folder / release
    shutil.copytree(original, sources / "vllm", copy_function=os.symlink)
    before = hashes(sources)
    patch("apply", sources)
    twice = patch("apply", sources)
    installed = tests is not HOOK_TESTS
    environment = {} if installed else {"MMOUT_TEST_ENGINE_SOURCES": str(sources), "VLLM_TARGET_DEVICE": "cpu"}
    status = run(
        sources, tests, arguments, MMOUT_TEST_ENGINE="installed" if installed else release, MMOUT_TEST_PATCHED="1",
        **environment,
    )  # fmt: skip
    patch("revert", sources)
    same = hashes(sources) == before
    good = status == 0 and same and "are applied" in twice
    say(f"patches for {release}: {'ok' if good else 'FAILED'} (pytest {status}, restored: {same})")
    return good


def main(arguments: list[str]) -> int:
    """Test all series, and return 0 if all went well."""
    spec = importlib.util.find_spec("vllm")
    installed = vllm.__version__.split("+")[0]
    engines = [engine for engine in ENGINES if (ROOT / f"patches/v{engine.version}").is_dir()]
    engines = [engine for engine in engines if engine.version != installed]
    try:
        folders = fetch(engines)
    except SourcesError as error:
        say(f"test-patches: {error}")
        return 2
    with tempfile.TemporaryDirectory(prefix="mmout-patched-") as name:
        tests = SHORT if os.environ.get("CI") else TESTS
        good = [tested(Path(spec.origin).parent, installed, Path(name), tests, ["-n", "2", *arguments])]
        for engine, folder in zip(engines, folders, strict=True):
            good.append(tested(folder / "vllm", engine.version, Path(name), HOOK_TESTS, arguments))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
