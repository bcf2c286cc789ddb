"""Decoding of pictures that a model writes as tokens: in batches against one by one, and what text loses beside it.

The decoder is Janus', with its own channels and random weights, for small pictures: some 0.1 s each on one core. The
batcher is that of the engine; it gets 64 pictures at once, and one by one they are decoded in the calling thread.

``TOKEN_PICTURES``, ``TOKEN_ROUNDS`` and ``TOKEN_TEXT`` (tokens of each text) make shorter runs, ``TOKEN_SIDE`` other
pictures.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Row
from benchmarks.token_model import CODES, layout, write_decoder, write_model
from benchmarks.token_text import CORES, Load, Run
from vllm_mmout import OutputParams
from vllm_mmout.wings.tokens.layouts import Medium

PICTURES = int(os.environ.get("TOKEN_PICTURES", "64"))
ROUNDS = int(os.environ.get("TOKEN_ROUNDS", "5"))
SIDE = int(os.environ.get("TOKEN_SIDE", "4"))
"""Codes of a row, and rows."""
LOAD = Load(ROUNDS, texts=8, tokens=int(os.environ.get("TOKEN_TEXT", "512")), every=8, side=SIDE)
LONG_S = 600.0
MOST_DIFFERENT = 2
"""Grey levels by which a picture of a batch may differ: sums are made in another order there."""
ASKED = {"cpu": 0.95, "cuda:0": 3.0}
ASKED_TEXT = 0.95


def run() -> list[Row]:
    """Measure."""
    import torch

    with tempfile.TemporaryDirectory() as name:
        decoder = write_decoder(Path(name, "decoder"), SIDE)
        rows = [_in_batches(decoder, "cpu")]
        if torch.cuda.is_available():
            rows.append(_in_batches(decoder, "cuda:0"))
        else:
            rows.append(Row("pictures decoded in batches, cuda:0: left out, there is no CUDA device", {}))
        if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < CORES:
            return [*rows, Row(f"text beside decoding: left out, there are no {CORES} cores to bind to", {})]
        model = write_model(Path(name, "model"), decoder, SIDE, LOAD.tokens + 16)
        return [*rows, *_text_rows(_beside_text(model))]


def _in_batches(decoder: Path, device: str) -> Row:
    """Pictures a second in batches and one by one, in turns."""
    from vllm_mmout.wings.tokens import VQImageProcessor
    from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher

    options = {"layout": layout(SIDE), "decoder": str(decoder), "device": device}
    processor = VQImageProcessor.from_config({}, options)
    processor.load()
    codes = np.random.default_rng(1).integers(0, CODES, (PICTURES, SIDE, SIDE))
    media = [Medium(0, SIDE**2, (one,), complete=True, grid=(SIDE, SIDE)) for one in codes]
    batcher = MediaBatcher(processor, LONG_S)
    seconds: dict[str, list[float]] = {"batches": [], "one by one": []}
    calls = []
    try:
        _by_batcher(batcher, media[:1])  # what only the first one costs, and its thread
        for _ in range(ROUNDS):
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
    ratios = [one / many for one, many in zip(seconds["one by one"], seconds["batches"], strict=True)]
    figures = {
        "pictures/s": PICTURES / statistics.median(seconds["batches"]),
        "one by one": PICTURES / statistics.median(seconds["one by one"]),
        "median ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "forwards": statistics.median(calls),
    }
    asked = ASKED[device]
    name = f"{PICTURES} pictures of {16 * SIDE} pixels square decoded in batches, {device}"
    return Row(name, figures, f"median ratio >= {asked:g}", figures["median ratio"] >= asked)


def _by_batcher(batcher: Any, media: list[Medium]) -> list[Any]:
    """The pictures of media that are all handed over at once."""
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
        assert np.abs(ours.astype(int) - theirs).max() <= MOST_DIFFERENT, "a picture of a batch is another one"


def _beside_text(model: Path) -> dict[str, list[Run]]:
    """The runs of a process of their own, by name."""
    command = [sys.executable, "-m", "benchmarks.token_text", str(model), json.dumps(asdict(LOAD))]
    child = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    lines = [line for line in child.stdout.decode().splitlines() if line.startswith("{")]
    return {name: [Run(**one) for one in runs] for name, runs in json.loads(lines[-1]).items()}


def _text_rows(found: dict[str, list[Run]]) -> list[Row]:
    speeds = {name: [one.tokens_per_s for one in runs] for name, runs in found.items()}
    ratios = [with_ / without for with_, without in zip(speeds["decoded"], speeds["none"], strict=True)]
    figures = {
        "tokens/s": statistics.median(speeds["decoded"]),
        "median ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "pictures": statistics.median(one.pictures for one in found["decoded"]),
        "decoded meanwhile": statistics.median(one.meanwhile for one in found["decoded"]),
    }
    met = figures["median ratio"] >= ASKED_TEXT
    return [
        Row("text beside pictures that are not decoded", {"tokens/s": statistics.median(speeds["none"])}),
        Row("text beside pictures that are decoded", figures, f"median ratio >= {ASKED_TEXT:g}", met),
    ]
