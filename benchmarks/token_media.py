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
"""Codes of a row, and rows."""
LOAD = Load(ROUNDS, texts=8, tokens=int(setting("TOKEN_TEXT", "512")), every=8, side=SIDE)
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
    figures = {
        "pictures/s": Figure.of(PICTURES / each for each in seconds["batches"]),
        "one by one pictures/s": Figure.of(PICTURES / each for each in seconds["one by one"]),
        "ratio": Figure.ratio(seconds["one by one"], seconds["batches"], at_least=ASKED[device]),
        "forwards": Figure.of(calls),
    }
    return Row(f"{PICTURES} pictures of {16 * SIDE} pixels square decoded in batches, {device}", figures)


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
    figures = {
        "tokens/s": Figure.of(speeds["decoded"]),
        "ratio": Figure.ratio(speeds["decoded"], speeds["none"], at_least=ASKED_TEXT),
        "pictures": Figure.of(one.pictures for one in found["decoded"]),
        "decoded meanwhile": Figure.of(one.meanwhile for one in found["decoded"]),
    }
    return [
        Row("text beside pictures that are not decoded", {"tokens/s": Figure.of(speeds["none"])}),
        Row("text beside pictures that are decoded", figures),
    ]
