"""Records of the benchmarks in ``docs/benchmarks/results.json``: the latest run of each, with its date and machine."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import msgspec

from benchmarks.report import Row, settings

RESULTS = Path(__file__).parents[1] / "docs" / "benchmarks" / "results.json"
_DIGITS = 4
"""Significant digits of each recorded figure."""


class Machine(msgspec.Struct, omit_defaults=True):
    """The machine that a benchmark ran on."""

    cores: int
    """Number of CPU cores that the process may use."""
    cpu: str
    memory_GiB: float = 0.0  # noqa: N815 - spelled as the unit is
    gpu: str = "none"


class Record(msgspec.Struct, omit_defaults=True):
    """The latest run of one benchmark."""

    about: str
    """The first line of the module's docstring."""
    date: str
    machine: Machine
    versions: dict[str, str]
    rows: list[Row]
    settings: dict[str, str] = {}
    """Environment variables that changed the run, by name."""
    note: str = ""
    """Remarks on the run, such as other work on the machine."""
    plotted: list[str] = []
    """Names of the figures that the page plots."""
    seconds: float = 0.0
    """Duration of the run in seconds."""


def measure(name: str, note: str = "") -> Record:
    """Run a benchmark and return its record."""
    module = importlib.import_module(f"benchmarks.{name}")
    started = time.monotonic()
    rows = module.run()
    return Record(
        about=about(module),
        date=time.strftime("%Y-%m-%d"),
        machine=_machine(),
        versions=_versions(getattr(module, "PACKAGES", ())),
        rows=rows,
        settings=settings(),
        note=note,
        plotted=list(getattr(module, "PLOTTED", ())),
        seconds=time.monotonic() - started,
    )


def about(module: ModuleType) -> str:
    """Return the first line of a benchmark's docstring, its title."""
    return (module.__doc__ or "").strip().splitlines()[0].rstrip(".").replace("``", "`")


def read(file: Path = RESULTS) -> dict[str, Record]:
    """Return all records by the name of their benchmark."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Record]) if file.exists() else {}


def keep(name: str, record: Record, file: Path = RESULTS) -> None:
    """Write ``record`` in place of the benchmark's previous record, and keep the records of other benchmarks."""
    write({**read(file), name: record}, file)


def write(records: Mapping[str, Record], file: Path = RESULTS) -> None:
    """Write the records with one row per line, so that a diff shows which rows have changed."""
    texts = []
    for name, record in sorted(records.items()):
        plain = _rounded(msgspec.to_builtins(record))
        rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in plain.pop("rows"))
        head = json.dumps(plain, ensure_ascii=False).removesuffix("}")
        texts.append(f'{json.dumps(name)}: {head},\n "rows": [\n  {rows}\n ]}}')
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _machine() -> Machine:
    import torch  # imported after the measurement, because it uses memory

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(len(affinity(0)) if affinity else os.cpu_count() or 1, cpu, memory, gpu)


def _versions(packages: Iterable[str]) -> dict[str, str]:
    import torch
    import vllm

    return {
        "vllm": str(vllm.__version__),
        "torch": str(torch.__version__),  # a subclass of str
        "python": platform.python_version(),
        "vllm_mmout": _commit(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def _commit() -> str:
    """Return the commit of this checkout, with a plus if the code of the package or the benchmarks has changes."""
    here = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "vllm_mmout", "benchmarks")
    return git("rev-parse", "--short=7", "HEAD") + "+" * bool(changed)
