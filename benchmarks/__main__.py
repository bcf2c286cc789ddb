"""The command ``python -m benchmarks [NAME ...]``, which runs benchmarks, prints results and writes the page."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.page import write_page
from benchmarks.records import keep, measure, read
from benchmarks.report import as_table

ELSEWHERE = ("compiled", "peer_faults", "peers", "ray_overhead")
"""Benchmarks that need another environment (``make bench-peers``), and run only if they are named."""
ON_GPU = "gpu"
"""Benchmark that needs a GPU. It runs first if there is one."""


def main() -> int:
    """Run the named benchmarks and return the exit status, which is 1 if one of them fails or misses its target."""
    available = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    usual = f"all but {', '.join(ELSEWHERE)}, and {ON_GPU} only with a CUDA device"
    parser.add_argument("names", nargs="*", help=f"of {', '.join(available)} (default: {usual})")
    parser.add_argument("--no-record", action="store_true", help="print the results, but do not record them")
    parser.add_argument("--note", default="", help="remarks on the machine or the run, separated by semicolons")
    parser.add_argument("--page", action="store_true", help="only write docs/benchmarks.md from the records")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in available]
    if unknown:
        parser.error(f"unknown benchmarks {', '.join(unknown)} (choose from {', '.join(available)})")
    if options.page:
        write_page(read())
        return 0
    names = options.names or _usual(available)
    if len(names) > 1:
        return max(_apart(name, options) for name in names)
    return _run(names[0], options)


def benchmarks() -> list[str]:
    """Return the names of the modules in this folder that have a function ``run``."""
    return sorted(
        path.stem for path in Path(__file__).parent.glob("*.py") if "\ndef run(" in path.read_text(encoding="utf-8")
    )


def _usual(available: Sequence[str]) -> list[str]:
    """Return the benchmarks to run without names. With a CUDA device, the benchmark for GPUs runs first."""
    import torch

    first = [ON_GPU] if torch.cuda.is_available() else []
    return [*first, *(name for name in available if name not in (*ELSEWHERE, ON_GPU))]


def _apart(name: str, options: argparse.Namespace) -> int:
    """Run a benchmark in its own process, so that it cannot affect the next one, and return its exit status."""
    flags = ["--note", options.note, *["--no-record"] * options.no_record]
    return subprocess.run([sys.executable, "-m", "benchmarks", name, *flags], check=False).returncode


def _run(name: str, options: argparse.Namespace) -> int:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    record = measure(name, options.note)
    print(as_table(record.rows), flush=True)
    if not options.no_record:
        keep(name, record)
        write_page(read())
    return 1 if any(row.is_met is False for row in record.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
