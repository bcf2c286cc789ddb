"""Text tokens a second of a small model with the plugin loaded, and with `VLLM_PLUGINS` leaving it out, in turns.

Two processes, each with an engine of the same Llama (two layers of 64, so that what is not the model shows most) that
is started as users do. A round has both answer the same requests by ``LLM.generate``, one after the other; which is
first alternates, and rounds are short: the speed of a machine changes within a second. Both must write the same tokens.
``TEXT_ROUNDS``, ``TEXT_REQUESTS`` and ``TEXT_TOKENS`` make other runs.
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
"""Of each request."""
ASKED = 0.98
"""1.00 within the noise of a quiet machine."""
PLOTTED = ("tokens/s",)
PLUGINS = {"with the plugin": {}, "without it": {"VLLM_PLUGINS": ""}}
_SIZE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}


def run() -> list[Row]:
    """Measure."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        model = write_text_model(Path(name), vocab_size=WORDS, max_position_embeddings=TOKENS + 16, **_SIZE)
        engines = {
            side: stack.enter_context(PhasedProcess(["benchmarks.text_untouched", str(model)], environment))
            for side, environment in PLUGINS.items()
        }
        order = list(engines)
        for number in range(ROUNDS + 1):  # the first one warms
            for side in order if number % 2 else reversed(order):
                engines[side].begin(f"round {number}")
        found = {side: engine.measured() for side, engine in engines.items()}
    assert [one["installed"] for one in found.values()] == [True, False]
    assert len({json.dumps(one["tokens"]) for one in found.values()}) == 1, "the plugin changes what is written"
    (with_s, without_s), (with_cpu, without_cpu) = (
        [one[times][1:] for one in found.values()] for times in ("seconds", "cpu_seconds")
    )
    rows = [
        Row(
            f"{REQUESTS} texts of {TOKENS} tokens, {side}",
            {"tokens/s": Figure.of(REQUESTS * TOKENS / one for one in seconds), "CPU s": Figure.of(cpu_seconds)},
        )
        for side, seconds, cpu_seconds in zip(found, (with_s, without_s), (with_cpu, without_cpu), strict=True)
    ]
    ratios = {
        "ratio of tokens/s": Figure.ratio(without_s, with_s, at_least=ASKED),
        "ratio of CPU s": Figure.ratio(with_cpu, without_cpu),
    }
    return [*rows, Row("with the plugin to without it", ratios)]


def main() -> None:
    """Answer a round for each line; in the end the seconds of all."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to where the answers go
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
    found = {"seconds": seconds, "cpu_seconds": cpu_seconds, "tokens": tokens, "installed": installed}
    print(json.dumps(found), file=answers, flush=True)
    llm.llm_engine.engine_core.shutdown()


def _used(processes: list[psutil.Process]) -> float:
    """Seconds of a processor that they have used so far."""
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


if __name__ == "__main__":
    main()
