# ruff: noqa: INP001 - the scripts are not a package
"""The tests of ``make test-engines``: the hooks against each vLLM of ``engine_sources.ENGINES`` and the installed vLLM.

Each run has its own interpreter, whose path has the release's sources before the installed vLLM. vLLM is not mocked.
Its compiled parts are missing there, which vLLM tolerates as long as no model runs. At the end, the tests run against a
copy with a renamed parameter, which they must reject: this shows that the tests can fail.

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
"""Text that the tests of the drifted copy must print."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the tests."""

    name: str
    version: str
    """The release, or ``INSTALLED``."""
    sources: Path | None
    """The folder that holds ``vllm/``, or None for the installed engine."""
    tests: tuple[str, ...] = HOOK_TESTS


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run."""

    status: int
    output: str
    seconds: float


def run(case: Run, arguments: list[str]) -> Result:
    """Run the tests in a fresh interpreter, and return the outcome."""
    environment = {
        **os.environ,
        "MMOUT_TEST_ENGINE": case.version,
        "MMOUT_TEST_ENGINE_SOURCES": str(case.sources or ""),
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, [case.sources, SCRIPTS]))),
        # vLLM reads its target from the version of the distribution vllm, which the sources do not have.
        "VLLM_TARGET_DEVICE": "cpu",
    }
    started = time.monotonic()
    process = subprocess.run(  # noqa: S603 - this interpreter's pytest
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *case.tests, *arguments],
        cwd=SCRIPTS.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Result(process.returncode, process.stdout, time.monotonic() - started)


def make_drifted(sources: Path, folder: Path) -> Path:
    """Return a copy of a release with one parameter renamed. vLLM itself still works in the copy."""
    copy = folder / "drifted"
    shutil.copytree(sources, copy, copy_function=os.symlink)
    module = copy / DRIFTED_MODULE
    text = module.read_text()
    module.unlink()  # it is a link to the original
    module.write_text(re.sub(rf"(?<!\.)\b{DRIFTED_PARAMETER}\b", f"fresh_{DRIFTED_PARAMETER}", text))
    return copy


def report(case: Run, result: Result) -> bool:
    """Print the outcome of a run, in one line if it is as expected, and return whether it is."""
    lines = reversed(result.output.splitlines())  # compiled packages may print lines after pytest's summary
    summary = next((line.strip("= ") for line in lines if re.search(r" in \d+\.\d+s\b", line)), "no summary")
    if case.name == DRIFTED:
        good = result.status == 1 and DRIFT in result.output
        summary = f"rejected as expected ({summary})" if good else f"NOT rejected with {DRIFT!r} ({summary})"
    else:
        good = result.status == 0
    if not good:
        say(result.output)
    say(f"{case.name:<16} {'ok' if good else 'FAILED':<6} {summary}; {result.seconds:.0f} s in total")
    return good


def main(arguments: list[str]) -> int:
    """Run the tests for all releases, and return 0 if all outcomes are as expected."""
    try:
        folders = fetch(ENGINES)
    except SourcesError as error:
        say(f"test-engines: {error}")
        return 2
    cases = [Run(str(engine), engine.version, folder) for engine, folder in zip(ENGINES, folders, strict=True)]
    cases.append(Run(INSTALLED, INSTALLED, None, ("tests/vllm_releases",)))  # `make test` runs the other tests
    with tempfile.TemporaryDirectory(prefix="mmout-drifted-") as temporary:
        if not arguments:  # the user's selection of tests may exclude the test that must fail
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
