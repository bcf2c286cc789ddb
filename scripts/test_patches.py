# ruff: noqa: INP001 - scripts are no package
"""``make test-patches``: each series of ``patches/`` applied, tested and reverted.

That of the installed vLLM on a copy of links to it, with which models run; that of each further release on its sources,
with the hook's tests. A copy must be as it was in the end, byte for byte.

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
"""Requests, scenes, both kinds of engine, text, IO plugins, media of tokens; the short ones where ``CI`` is set."""
HOOK_TESTS = ("tests/vllm_releases", "tests/properties/test_hooks.py")


def patch(action: str, sources: Path) -> str:
    """What the command says; an error of it ends the script."""
    command = [sys.executable, "-m", "vllm_mmout.cli", "patch", f"--{action}", "--sources", str(sources)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    say(f"patch --{action}: {(done.stdout + done.stderr).strip()}")
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def hashes(folder: Path) -> dict[str, str]:
    """Of each file of Python."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.py"))
    }


def run(sources: Path, tests: tuple[str, ...], arguments: list[str], **environment: str) -> int:
    """Run tests with a patched vLLM; the status of pytest."""
    path = os.pathsep.join(map(str, [sources, ROOT / "scripts"]))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests, *arguments]
    return subprocess.run(  # noqa: S603 - this interpreter's pytest
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **environment}, check=False
    ).returncode


def tested(original: Path, release: str, folder: Path, tests: tuple[str, ...], arguments: list[str]) -> bool:
    """Apply a series to a copy, run tests with it, and revert it."""
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
    say(f"patches for {release}: {'ok' if good else 'FAILED'} (pytest {status}, as it was: {same})")
    return good


def main(arguments: list[str]) -> int:
    """Run all; 0 if all ended as they must."""
    found = importlib.util.find_spec("vllm")
    installed = vllm.__version__.split("+")[0]
    others = [engine for engine in ENGINES if (ROOT / f"patches/v{engine.version}").is_dir()]
    others = [engine for engine in others if engine.version != installed]
    try:
        folders = fetch(others)
    except SourcesError as error:
        say(f"test-patches: {error}")
        return 2
    with tempfile.TemporaryDirectory(prefix="mmout-patched-") as name:
        tests = SHORT if os.environ.get("CI") else TESTS
        good = [tested(Path(found.origin).parent, installed, Path(name), tests, ["-n", "2", *arguments])]
        for engine, folder in zip(others, folders, strict=True):
            good.append(tested(folder / "vllm", engine.version, Path(name), HOOK_TESTS, arguments))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
