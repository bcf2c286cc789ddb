"""An engine whose core is killed in the middle of a scene; run as ``python killed_engine.py FOLDER``, answers in JSON.

First ``LLM``, then ``AsyncLLM``: what the caller is told, and what is left.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from pathlib import Path

import psutil
import scene_ends
from processors_for_tests import ALL
from scenes_for_tests import TILE, pixels, write

from vllm_mmout import OutputParams, embedded_model

ENGINE = {
    "gpu_memory_utilization": 0.3,
    "distributed_executor_backend": "uni",
    "additional_config": {"mmout": {"output_processor": ALL, "max_tiles": 2}},
}


def killing(engine, before):
    """Have the third tile that is decoded stop the processes that were started since, and kill them a second later.

    By then all tiles in flight wait for them: nothing else happens in this process any more.
    """
    processor = engine.output_processor.binding.processors["segmentation"]
    decode, count = processor.decode, []

    def kills(raw, params, state=None):
        count.append(raw)
        if len(count) == 3:
            children = psutil.Process().children(recursive=True)
            started = [one for one in children if one.pid not in before and "tracker" not in " ".join(one.cmdline())]
            for child in started:
                child.send_signal(signal.SIGSTOP)
            threading.Timer(1.0, lambda: [child.kill() for child in started]).start()
        return decode(raw, params, state)

    processor.decode = kills


def left(folder, looks, router):
    """What is left, in words."""
    return {name: str(what) for name, what in looks.all(router).items()} | {
        "destination": [file.name for file in folder.iterdir() if file.name != "in.tif"]
    }


def started_before():
    """The processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def told(error):
    """The error in words."""
    return [f"{type(error).__module__}.{type(error).__name__}", str(error)]


def sync(folder, looks):
    """Run a scene through ``LLM``."""
    from vllm import LLM

    before = started_before()
    llm = LLM(embedded_model("water-index"), **ENGINE)
    killing(llm.llm_engine, before)
    params, errors = OutputParams(tile=TILE, path=str(folder / "out.tif")), []
    for _ in range(2):
        try:
            llm.generate(folder / "in.tif", params, use_tqdm=False)
        except Exception as error:  # noqa: BLE001 - the test looks at whatever it is
            errors.append(told(error))
    return {"errors": errors, "left": left(folder, looks, llm.llm_engine.output_processor)}


async def asynchronous(folder, looks):
    """Run two scenes through ``AsyncLLM``."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    before = started_before()
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(embedded_model("water-index"), **ENGINE))
    killing(engine, before)

    async def one(name):
        params = OutputParams(tile=TILE, path=str(folder / name))
        return [result async for result in engine.generate(folder / "in.tif", params)]

    ended = await asyncio.gather(one("a.tif"), one("b.tif"), return_exceptions=True)
    ended += await asyncio.gather(one("c.tif"), return_exceptions=True)
    budget = engine.mmout.budget
    answer = {
        "errors": [told(error) for error in ended],
        "left": left(folder, looks, engine.output_processor),
        "budget": [budget.used_count, budget.used_bytes, len(engine.mmout.driven), engine.mmout.schedule.room],
    }
    engine.shutdown()
    return answer


def main():
    """Run both."""
    folder = Path(sys.argv[1])
    # Of so many tiles that most are not computed when the third one is decoded.
    write(folder / "in.tif", pixels(1, 1200, 1200), tiled=True, blockxsize=32, blockysize=32)
    looks = scene_ends.Left(folder)
    answer = {"sync": sync(folder, looks), "async": asyncio.run(asynchronous(folder, looks))}
    print("answer:", json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
