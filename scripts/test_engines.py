# ruff: noqa: INP001 - scripts are no package
"""``make test-engines``: the hook's unit tests against each vLLM of ``engine_sources.ENGINES``, and the installed one.

Each runs in an interpreter of its own, in which the release's sources come before the installed vLLM. Nothing of vLLM
is replaced: its compiled parts are absent there, which vLLM itself bears as long as no model runs. At the end the tests
run against a copy that has drifted, which they must refuse: a suite that cannot fail says nothing.

    python scripts/test_engines.py [ARGUMENTS OF PYTEST]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from engine_sources import ENGINES, SourcesError, fetch, say, untried

SCRIPTS = Path(__file__).resolve().parent
HOOK_TESTS = ("tests/vllm_releases", "tests/properties/test_hooks.py")
INSTALLED = "installed"
DRIFTED = "drifted"
DRIFTED_MODULE = "vllm/v1/engine/output_processor.py"
DRIFTED_PARAMETER = "new_token_ids"
DRIFT = f"RequestState.make_request_output has no parameter {DRIFTED_PARAMETER}"
"""What the tests must say of the copy."""


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of the suite."""

    name: str
    version: str
    """Release, or ``INSTALLED``."""
    sources: Path | None
    """Folder that holds ``vllm/``; None: the installed engine."""
    tests: tuple[str, ...] = HOOK_TESTS


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it."""

    status: int
    output: str
    seconds: float


def run(case: Run, arguments: list[str]) -> Result:
    """Run the suite in a fresh interpreter."""
    environment = {
        **os.environ,
        "MMOUT_TEST_ENGINE": case.version,
        "MMOUT_TEST_ENGINE_SOURCES": str(case.sources or ""),
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, [case.sources, SCRIPTS]))),
        # Without a distribution called vllm there is no version that could tell vLLM what it was built for.
        "VLLM_TARGET_DEVICE": "cpu",
    }
    started = time.monotonic()
    done = subprocess.run(  # noqa: S603 - this interpreter's pytest
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *case.tests, *arguments],
        cwd=SCRIPTS.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Result(done.returncode, done.stdout, time.monotonic() - started)


def make_drifted(sources: Path, folder: Path) -> Path:
    """A copy of a release with one parameter renamed, with which vLLM itself works as before."""
    copy = folder / "drifted"
    shutil.copytree(sources, copy, copy_function=os.symlink)
    module = copy / DRIFTED_MODULE
    text = module.read_text()
    module.unlink()  # a link to the original
    module.write_text(re.sub(rf"(?<!\.)\b{DRIFTED_PARAMETER}\b", f"fresh_{DRIFTED_PARAMETER}", text))
    return copy


def report(case: Run, result: Result) -> bool:
    """Print how a run ended, in one line if well; whether it did."""
    last = next((line for line in reversed(result.output.splitlines()) if line.strip()), "no output")
    summary = last.strip("= ")
    if case.name == DRIFTED:
        good = result.status == 1 and DRIFT in result.output
        summary = f"refused as it must be ({summary})" if good else f"NOT refused with {DRIFT!r} ({summary})"
    else:
        good = result.status == 0
    if not good:
        say(result.output)
    say(f"{case.name:<16} {'ok' if good else 'FAILED':<6} {summary}; {result.seconds:.0f} s in all")
    return good


def main(arguments: list[str]) -> int:
    """Run all; 0 if all ended as they must."""
    try:
        folders = fetch(ENGINES)
    except SourcesError as error:
        say(f"test-engines: {error}")
        return 2
    cases = [Run(str(engine), engine.version, folder) for engine, folder in zip(ENGINES, folders, strict=True)]
    cases.append(Run(INSTALLED, INSTALLED, None, ("tests/vllm_releases",)))  # the rest of them is in `make test`
    with tempfile.TemporaryDirectory(prefix="mmout-drifted-") as temporary:
        if not arguments:  # a choice of tests may leave out the one that must fail
            copy = make_drifted(folders[0], Path(temporary))
            cases.append(Run(DRIFTED, ENGINES[0].version, copy, ("tests/vllm_releases/test_claims.py",)))
        with ThreadPoolExecutor(min(len(cases), os.cpu_count() or 1)) as pool:
            results = pool.map(lambda case: run(case, arguments), cases)
            good = [report(case, result) for case, result in zip(cases, results, strict=True)]
    if warning := untried():
        say(f"test-engines: {warning}")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
