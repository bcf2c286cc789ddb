"""``python -m benchmarks [NAME ...]``: run measurements, print the table, write it beside a JSON."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from benchmarks.report import Row, as_table, write

MEASUREMENTS = (
    "event_loop",
    "start_cost",
    "tiles",
    "scene_memory",
    "scene_latency",
    "cog_pass",
    "polygon_memory",
    "serving_health",
    "serving_gone",
    "token_media",
    "modules_crossed",
    "heads",
)
ELSEWHERE = ("peers", "peer_faults", "compiled", "gpu")
"""Measurements that need another environment (``make bench-peers``) or a GPU."""


def main() -> int:
    """Run the measurements asked for; the exit status is 1 if one misses what is asked of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all by default")
    parser.add_argument("-o", "--out", type=Path, default=Path("benchmark-results"), help="folder (%(default)s)")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in (*MEASUREMENTS, *ELSEWHERE)]
    if unknown:
        parser.error(f"unknown measurements {', '.join(unknown)} (known: {', '.join((*MEASUREMENTS, *ELSEWHERE))})")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    rows: list[Row] = []
    for name in options.names or MEASUREMENTS:
        rows += importlib.import_module(f"benchmarks.{name}").run()
    write(rows, options.out)
    print(as_table(rows))
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
