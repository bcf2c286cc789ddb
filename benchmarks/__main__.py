"""``python -m benchmarks [NAME ...]``: run benchmarks and print what they find; `docs/benchmarks.md` is made of it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.page import write_page
from benchmarks.records import keep, measure, read
from benchmarks.report import as_table

ELSEWHERE = ("compiled", "gpu", "peer_faults", "peers", "ray_overhead")
"""Benchmarks that need another environment (``make bench-peers``) or a GPU; they run where they are named."""


def main() -> int:
    """Run the benchmarks asked for; the exit status is 1 if one misses what is asked of it, or fails."""
    known = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known)}; all but {', '.join(ELSEWHERE)} by default")
    parser.add_argument("--no-record", action="store_true", help="print what is found, and keep nothing of it")
    parser.add_argument("--note", default="", help="what else is to be known, such as other work on the machine")
    parser.add_argument("--page", action="store_true", help="run nothing: make the page of what is recorded")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"unknown benchmarks {', '.join(unknown)} (known: {', '.join(known)})")
    if options.page:
        write_page(read())
        return 0
    names = options.names or [name for name in known if name not in ELSEWHERE]
    if len(names) > 1:
        return max(_apart(name, options) for name in names)
    return _run(names[0], options)


def benchmarks() -> list[str]:
    """The modules beside this one that have a function ``run``."""
    return sorted(
        path.stem for path in Path(__file__).parent.glob("*.py") if "\ndef run(" in path.read_text(encoding="utf-8")
    )


def _apart(name: str, options: argparse.Namespace) -> int:
    """Run a benchmark in a process of its own, so that none leaves anything to the next; gives its exit status."""
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
