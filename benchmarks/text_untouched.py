"""Text tokens a second of a small model with the plugin loaded, and with `VLLM_PLUGINS` leaving it out, in turns.

Two processes each have an engine of the same Llama (two layers of 64, so that overhead outside the model shows most),
started as users start it. In a round, both answer the same requests by ``LLM.generate``, one after the other. They
alternate in going first, and rounds are short, because the speed of a machine changes within a second. Both must write
the same tokens. ``TEXT_ROUNDS``, ``TEXT_REQUESTS`` and ``TEXT_TOKENS`` change the run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks.phases import PhasedProcess
from benchmarks.report import Figure, Row, setting
from benchmarks.token_model import WORDS, write_text_model

ROUNDS = int(setting("TEXT_ROUNDS", "60"))
REQUESTS = int(setting("TEXT_REQUESTS", "32"))
TOKENS = int(setting("TEXT_TOKENS", "64"))
"""Tokens of each request."""
ASKED = 0.98
"""Minimum ratio of the tokens per second: 1.00 less the noise of a quiet machine."""
PLOTTED = ("tokens/s",)
PLUGINS = {"with the plugin": {}, "without it": {"VLLM_PLUGINS": ""}}
_SIZE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        model = write_text_model(Path(name), vocab_size=WORDS, max_position_embeddings=TOKENS + 16, **_SIZE)
        engines = {
            side: stack.enter_context(PhasedProcess(["benchmarks.text_untouched", str(model)], environment))
            for side, environment in PLUGINS.items()
        }
        order = list(engines)
        for number in range(ROUNDS + 1):  # the first round warms up
            for side in order if number % 2 else reversed(order):
                engines[side].begin(f"round {number}")
        results = {side: engine.measured() for side, engine in engines.items()}
    assert [result["installed"] for result in results.values()] == [True, False]
    assert len({json.dumps(result["tokens"]) for result in results.values()}) == 1, "the plugin changes the tokens"
    (with_s, without_s), (with_cpu, without_cpu) = (
        [result[times][1:] for result in results.values()] for times in ("seconds", "cpu_seconds")
    )
    rows = [
        Row(
            f"{REQUESTS} texts of {TOKENS} tokens, {side}",
            {
                "tokens/s": Figure.of(REQUESTS * TOKENS / round_s for round_s in seconds),
                "CPU s": Figure.of(cpu_seconds),
            },
        )
        for side, seconds, cpu_seconds in zip(results, (with_s, without_s), (with_cpu, without_cpu), strict=True)
    ]
    ratios = {
        "ratio of tokens/s": Figure.ratio(without_s, with_s, at_least=ASKED),
        "ratio of CPU s": Figure.ratio(with_cpu, without_cpu),
    }
    return [*rows, Row("with the plugin to without it", ratios)]


def main() -> None:
    """Answer a round of requests for each line of input, and print the seconds of all rounds at the end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep vLLM's log out of the answers
    from vllm import LLM, SamplingParams

    llm: Any = LLM(sys.argv[1], gpu_memory_utilization=0.2, distributed_executor_backend="uni", seed=0)
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0)
    prompts = [f"text {number}" for number in range(REQUESTS)]
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    seconds, cpu_seconds, tokens = [], [], []
    for line in sys.stdin:
        started, used = time.perf_counter(), _used(processes)
        results = llm.generate(prompts, params, use_tqdm=False)
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(_used(processes) - used)
        tokens = [list(result.outputs[0].token_ids) for result in results]
        print(line.strip(), file=answers, flush=True)
    installed = "vllm_mmout" in sys.modules
    report = {"seconds": seconds, "cpu_seconds": cpu_seconds, "tokens": tokens, "installed": installed}
    print(json.dumps(report), file=answers, flush=True)
    llm.llm_engine.engine_core.shutdown()


def _used(processes: list[psutil.Process]) -> float:
    """Return the processor time that the processes have used so far, in seconds."""
    times = [process.cpu_times() for process in processes]
    return sum(times_of_process.user + times_of_process.system for times_of_process in times)


if __name__ == "__main__":
    main()
