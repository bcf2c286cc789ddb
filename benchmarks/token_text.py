"""Text tokens a second of an engine on one core, with and without pictures decoded by the frontend on another core.

Both kinds of runs have the same requests: some for text, and one for a picture each time that the first text has grown
by ``Load.every`` tokens. In one kind the pictures are decoded, in the other their requests say ``output="none"``. Runs
take turns in a process of their own. Its threads are bound to one core, and the engine's threads to another.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.token_model import CODES, WORDS

CORES = 2
"""Number of cores: one for the engine, one for the frontend."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of each run."""

    rounds: int
    texts: int
    """Number of requests for text, all at once."""
    tokens: int
    """Tokens of each request for text."""
    every: int
    """Tokens of text from one request for a picture to the next."""
    side: int
    """Number of rows, and of columns, of a picture's codes."""


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one run."""

    tokens_per_s: float
    """Tokens per second of all requests for text."""
    pictures: int
    """Number of requests for pictures."""
    meanwhile: int
    """Number of pictures that were decoded before the last text had ended."""


def main() -> None:
    """Print the runs by name as a line of JSON."""
    model, load = sys.argv[1], Load(**json.loads(sys.argv[2]))
    print(
        json.dumps({name: [asdict(run) for run in runs] for name, runs in asyncio.run(_measure(model, load)).items()})
    )


async def _measure(model: str, load: Load) -> dict[str, list[Run]]:
    engine_core, frontend_core = sorted(os.sched_getaffinity(0))[:CORES]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(engine_core)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine: Any = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model,
            dtype="float32",
            gpu_memory_utilization=0.3,
            distributed_executor_backend="uni",
            enforce_eager=True,
            enable_prefix_caching=False,
        )
    )
    runs: dict[str, list[Run]] = {"decoded": [], "none": []}
    try:
        for process in psutil.Process().children(recursive=True):
            _bind(process.pid, engine_core)
        _bind(os.getpid(), frontend_core)
        for output in (None, "none"):  # warm up
            await _run(engine, replace(load, tokens=2 * load.every), output, f"first {output}")
        for number in range(load.rounds):
            runs["decoded"].append(await _run(engine, load, None, f"decoded {number}"))
            runs["none"].append(await _run(engine, load, "none", f"none {number}"))
    finally:
        engine.shutdown()
    return runs


def _bind(process: int, core: int) -> None:
    """Bind all threads of a process to a core. Threads that they start later are bound too."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


async def _run(engine: Any, load: Load, output: str | None, name: str) -> Run:
    """Run the requests once. ``output`` is the ``output`` of the requests for pictures."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from vllm_mmout import OutputParams

    words = SamplingParams(
        max_tokens=load.tokens,
        ignore_eos=True,
        allowed_token_ids=list(range(WORDS)),
        output_kind=RequestOutputKind.DELTA,
        seed=1,
    )
    codes = SamplingParams(
        max_tokens=load.side**2, ignore_eos=True, allowed_token_ids=list(range(WORDS, WORDS + CODES)), seed=2
    )
    ended: list[float] = []
    pictures: list[asyncio.Task[None]] = []

    async def picture(number: int) -> None:
        params = OutputParams(sampling=codes, output=output)
        results = [result async for result in engine.generate("draw", params, f"{name} picture {number}")]
        media = results[-1].outputs[0].multimodal if output is None else ()
        assert len(media) == (output is None), f"{len(media)} pictures of {name}"
        ended.append(time.perf_counter())

    async def text(number: int) -> int:
        tokens = 0
        async for result in engine.generate("write", words, f"{name} text {number}"):
            before, tokens = tokens, tokens + len(result.outputs[0].token_ids)
            if number == 0 and before // load.every < tokens // load.every:
                pictures.append(asyncio.create_task(picture(tokens)))
        return tokens

    started = time.perf_counter()
    counts = await asyncio.gather(*(text(number) for number in range(load.texts)))
    finished = time.perf_counter()
    await asyncio.gather(*pictures)
    assert counts == [load.tokens] * load.texts
    decoded = 0 if output else sum(moment <= finished for moment in ended)
    return Run(sum(counts) / (finished - started), len(pictures), decoded)


if __name__ == "__main__":
    main()
