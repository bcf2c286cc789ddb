"""Decoding of pictures that a model writes as tokens: in batches and one by one, and its effect on text generation.

The decoder is Janus' decoder with its own channels and random weights, for small pictures that take some 0.1 s each on
one core. The engine's batcher gets 64 pictures at once; for comparison, the calling thread decodes them one by one.

``TOKEN_PICTURES``, ``TOKEN_ROUNDS`` and ``TOKEN_TEXT`` (tokens of each text) make shorter runs. ``TOKEN_SIDE`` changes
the size of the pictures.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Figure, Row, setting
from benchmarks.token_model import CODES, layout, write_decoder, write_model
from benchmarks.token_text import CORES, Load, Run
from vllm_mmout import OutputParams
from vllm_mmout.wings.tokens.layouts import Medium

PICTURES = int(setting("TOKEN_PICTURES", "64"))
ROUNDS = int(setting("TOKEN_ROUNDS", "5"))
SIDE = int(setting("TOKEN_SIDE", "4"))
"""Number of rows, and of columns, of a picture's codes."""
LOAD = Load(ROUNDS, texts=8, tokens=int(setting("TOKEN_TEXT", "512")), every=8, side=SIDE)
LONG_S = 600.0
MOST_DIFFERENT = 2
"""Grey levels that a picture of a batch may differ by, because a batch adds numbers in another order."""
ASKED = {"cpu": 0.95, "cuda:0": 3.0}
ASKED_TEXT = 0.95


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        decoder = write_decoder(Path(name, "decoder"), SIDE)
        rows = [in_batches(decoder, "cpu")]
        if torch.cuda.is_available():
            rows.append(in_batches(decoder, "cuda:0"))
        else:
            rows.append(Row("pictures decoded in batches, cuda:0: not measured, there is no CUDA device", {}))
        if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < CORES:
            return [*rows, Row(f"text beside decoding: not measured, there are fewer than {CORES} cores", {})]
        model = write_model(Path(name, "model"), decoder, SIDE, LOAD.tokens + 16)
        return [*rows, *_text_rows(_beside_text(model))]


def in_batches(decoder: Path, device: str, pictures: int = PICTURES, rounds: int = ROUNDS) -> Row:
    """Return pictures per second in batches and one by one, in turns."""
    from vllm_mmout.wings.tokens import VQImageProcessor
    from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher

    options = {"layout": layout(SIDE), "decoder": str(decoder), "device": device}
    processor = VQImageProcessor.from_config({}, options)
    processor.load()
    codes = np.random.default_rng(1).integers(0, CODES, (pictures, SIDE, SIDE))
    media = [Medium(0, SIDE**2, (codes_of_picture,), complete=True, grid=(SIDE, SIDE)) for codes_of_picture in codes]
    batcher = MediaBatcher(processor, LONG_S)
    seconds: dict[str, list[float]] = {"batches": [], "one by one": []}
    calls = []
    try:
        _by_batcher(batcher, media[:1])  # warm up, and start the batcher's thread
        for _ in range(rounds):
            started, before = time.perf_counter(), batcher.calls
            together = _by_batcher(batcher, media)
            seconds["batches"].append(time.perf_counter() - started)
            calls.append(batcher.calls - before)
            started = time.perf_counter()
            alone = [processor.decode(medium, OutputParams()).array for medium in media]
            seconds["one by one"].append(time.perf_counter() - started)
            _check(together, alone)
    finally:
        batcher.close()
    figures = {
        "pictures/s": Figure.of(pictures / round_s for round_s in seconds["batches"]),
        "one by one pictures/s": Figure.of(pictures / round_s for round_s in seconds["one by one"]),
        "ratio": Figure.ratio(seconds["one by one"], seconds["batches"], at_least=ASKED[device]),
        "forwards": Figure.of(calls),
    }
    return Row(f"{pictures} pictures of {16 * SIDE} pixels square decoded in batches, {device}", figures)


def _by_batcher(batcher: Any, media: list[Medium]) -> list[Any]:
    """Submit all media at once, and return their pictures."""
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    jobs = [batcher.submit(medium, OutputParams(), done.put) for medium in media]
    for _ in jobs:
        done.get(timeout=LONG_S)
    for job in jobs:
        if isinstance(job.outcome, BaseException):
            raise job.outcome
    return [job.outcome.array for job in jobs]


def _check(together: list[Any], alone: list[Any]) -> None:
    for ours, theirs in zip(together, alone, strict=True):
        assert np.abs(ours.astype(int) - theirs).max() <= MOST_DIFFERENT, "a picture of a batch differs"


def _beside_text(model: Path) -> dict[str, list[Run]]:
    """Run `benchmarks.token_text` in another process, and return its runs by name."""
    command = [sys.executable, "-m", "benchmarks.token_text", str(model), json.dumps(asdict(LOAD))]
    child = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    lines = [line for line in child.stdout.decode().splitlines() if line.startswith("{")]
    return {name: [Run(**run_fields) for run_fields in runs] for name, runs in json.loads(lines[-1]).items()}


def _text_rows(runs_by_name: dict[str, list[Run]]) -> list[Row]:
    speeds = {name: [run_.tokens_per_s for run_ in runs] for name, runs in runs_by_name.items()}
    figures = {
        "tokens/s": Figure.of(speeds["decoded"]),
        "ratio": Figure.ratio(speeds["decoded"], speeds["none"], at_least=ASKED_TEXT),
        "pictures": Figure.of(run_.pictures for run_ in runs_by_name["decoded"]),
        "decoded meanwhile": Figure.of(run_.meanwhile for run_ in runs_by_name["decoded"]),
    }
    return [
        Row("text beside pictures that are not decoded", {"tokens/s": Figure.of(speeds["none"])}),
        Row("text beside pictures that are decoded", figures),
    ]
