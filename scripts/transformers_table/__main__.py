# ruff: noqa: INP001 - the scripts are not a package
"""Try each architecture of transformers that a folder may have, small and with random weights, and write a table.

Each model has its default configuration with few layers where possible. It is saved with its own processor as a user
would save it, started by ``vllm.LLM``, and given two inputs of different sizes, in a batch and alone. The results are
compared with transformers, called directly with the processor of the folder. Each model runs in its own process.

Each is tried with the folder alone and with the engine argument (``--way`` selects one). With the folder alone, the
product serves the folder as with the argument, or leaves it to vLLM. ``--left`` tries only architectures that are left
to vLLM.

``--served`` also sends the requests to a server. ``--resume`` continues an interrupted run. ``--write`` writes the page
from the rows in the file, and keeps the page's other rows.

    python scripts/transformers_table --rows rows.jsonl --tables DEPTH_ESTIMATION,BACKBONE
    python scripts/transformers_table --rows rows.jsonl --only ViTModel,SamModel --way alone
    python scripts/transformers_table --rows rows.jsonl --resume --jobs 2
    python scripts/transformers_table --rows rows.jsonl --write docs/transformers-table.md
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from page import page
from trying import WAYS, architectures, is_left_alone, leave_row

LIMIT_S = 240
"""Time limit for each architecture, in seconds."""


def main() -> None:
    """Try architectures, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=Path, default=Path("transformers-table.jsonl"))
    parser.add_argument("--tables", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--left", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--served", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.write:
        options.write.write_text(page(options.rows, options.write))
        return
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.resume else []
    done = {(row["architecture"], row["way"]) for row in rows}
    if not options.resume:
        options.rows.unlink(missing_ok=True)
    tables, names = set(options.tables.split(",")) - {""}, set(options.only.split(",")) - {""}
    todo = [
        (name, way)
        for name, table in architectures().items()
        for way in ([options.way] if options.way else WAYS)
        if (name, way) not in done and (not tables or table in tables) and (not names or name in names)
    ]
    if options.left:
        todo = [(name, way) for name, way in todo if is_left_alone(name)]
    run_all(todo, options.rows, options.jobs, served=options.served)


def run_all(todo: list[tuple[str, str]], rows: Path, jobs: int, *, served: bool) -> None:
    """Try architectures, ``jobs`` at a time, each in a process forked from a process with all imports."""
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # for each process
    context: ForkServerContext = get_context("forkserver")
    context.set_forkserver_preload(["vllm.v1.worker.cpu_worker", "vllm.entrypoints.llm", "transformers.models.auto"])
    running: dict[tuple[str, str], tuple[ForkServerProcess, float, Path]] = {}
    waiting = list(todo)
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                tried = waiting.pop(0)
                file = Path(folder, f"{'-'.join(tried)}.json")
                process = context.Process(target=leave_row, args=(*tried, str(file)), kwargs={"served": served})
                process.start()
                running[tried] = process, time.monotonic(), file
            time.sleep(0.1)
            for tried, (process, started, file) in list(running.items()):
                late = time.monotonic() - started > LIMIT_S
                if process.is_alive() and not late:
                    continue
                process.kill()
                process.join()
                del running[tried]
                _keep(rows, *tried, file, _ended(late, process.exitcode))


def _ended(late: bool, status: int | None) -> str:  # noqa: FBT001 - the state of a process, not an option
    if late:
        return f"longer than {LIMIT_S} s"
    return "takes more memory than available" if status == -signal.SIGKILL else f"ends with {status}"


def _keep(rows: Path, name: str, way: str, file: Path, otherwise: str) -> None:
    row: dict[str, Any] = {"architecture": name, "table": architectures()[name], "way": way, "result": otherwise}
    row["date"] = time.strftime("%Y-%m-%d")
    if file.is_file():
        row = json.loads(file.read_text())
    with rows.open("a") as output:
        output.write(json.dumps(row) + "\n")
    print(name, way, row["result"], flush=True)  # noqa: T201 - progress


if __name__ == "__main__":
    main()
