"""Engines in processes of their own: a function here is run by a fresh interpreter and answers in JSON.

``run("text", model=...)`` in a test starts ``python engine_scripts.py text '{"model": ...}'``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

TEXT = {"max_model_len": 128, "dtype": "float32"}
SMALL = {"gpu_memory_utilization": 0.3, "seed": 0, "enforce_eager": True}
ANSWER = "answer of the script: "
PROMPTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"]


def run(name, *, path=(), environment=None, timeout=1200, **arguments):
    """Run one of the functions below and return its answer; by default its engine has processes of its own."""
    folders = [*map(str, path), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, __file__, name, json.dumps(arguments)],
        env={
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # fixtures of other tests may have set it for their time
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": os.pathsep.join(folders),
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    answers = [line.removeprefix(ANSWER) for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\nit ended with {done.returncode}"
    assert len(answers) == 1, f"{done.stdout}\n{done.stderr}"
    return {**json.loads(answers[0]), "log": done.stdout + done.stderr}


def make_llama(folder):
    """A small Llama with random weights and a tokenizer of 64 words; the same one each time."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *(f"w{n}" for n in range(61))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - a token of a text
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",  # noqa: S106
        bos_token="<s>",  # noqa: S106
        eos_token="</s>",  # noqa: S106
    ).save_pretrained(folder)
    torch.manual_seed(7)
    LlamaForCausalLM(
        LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=64,
            max_position_embeddings=128,
            initializer_range=0.5,
            bos_token_id=1,
            eos_token_id=2,
            dtype="float32",
        )
    ).save_pretrained(folder, safe_serialization=True)
    return str(folder)


@contextmanager
def profiling():
    """Record the calls in all processes below this one; gives a dict that holds their reports by pid afterwards.

    Let an engine answer first: it says that it is ready before its core enters its loop, where its start-up ends.
    """
    import psutil

    folder, reports = Path(os.environ["PROFILED"]), {}
    flag = folder / "on"
    processes = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    flag.touch()
    _wait_for(folder / f"{process}.ready" for process in processes)
    yield reports
    flag.unlink()
    _wait_for(folder / f"{process}.json" for process in processes)
    reports.update({process: json.loads((folder / f"{process}.json").read_text()) for process in processes})


def _wait_for(files):
    deadline = time.monotonic() + 60
    for file in files:
        while not file.exists():
            assert time.monotonic() < deadline, f"no {file.name}"
            time.sleep(0.02)


def _sampling():
    from vllm import SamplingParams

    return [
        SamplingParams(temperature=0, max_tokens=16, ignore_eos=True),
        SamplingParams(temperature=1, seed=3, max_tokens=16, ignore_eos=True),
        SamplingParams(temperature=1, seed=5, max_tokens=16, n=2, ignore_eos=True),
    ]


def _said(outputs):
    return [[[list(one.token_ids), one.text] for one in output.outputs] for output in outputs]


def _describe(engine, reports, **answer):
    from vllm.v1.engine.output_processor import OutputProcessor

    return {
        **answer,
        "vllms_class": type(engine.output_processor) is OutputProcessor,
        "modules": sorted(name for name in sys.modules if name.startswith("vllm_mmout")),
        "frontend": os.getpid(),
        "reports": reports,
    }


@contextmanager
def _llm(model, **options):
    """``LLM``, shut down in the end: an interpreter that ends beside vLLM's thread that watches the core may crash."""
    from vllm import LLM

    llm = LLM(model, **options, **SMALL)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def text(model):
    """Generate with ``LLM``, profiled if the profiler is there."""
    with _llm(model, distributed_executor_backend="mp", **TEXT) as llm:
        llm.generate("w11", _sampling()[0], use_tqdm=False)
        if "PROFILED" not in os.environ:
            return _describe(llm.llm_engine, {}, said=_said(llm.generate(PROMPTS, _sampling(), use_tqdm=False)))
        with profiling() as reports:
            said = _said(llm.generate(PROMPTS, _sampling(), use_tqdm=False))
        return _describe(llm.llm_engine, reports, said=said)


def text_async(model):
    """Generate with ``AsyncLLM``, profiled."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    async def one(engine, number, prompt, params):
        last = {}
        async for output in engine.generate(prompt, params, str(number)):
            last.update({one.index: one for one in output.outputs})  # each of several samples ends when it ends
            output.outputs = [last[index] for index in sorted(last)]
        return output

    async def main():
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model, distributed_executor_backend="mp", **TEXT, **SMALL))
        try:
            await one(engine, "first", "w11", _sampling()[0])
            with profiling() as reports:
                rows = zip(PROMPTS, _sampling(), strict=True)
                outputs = await asyncio.gather(*(one(engine, n, *row) for n, row in enumerate(rows)))
            return _describe(engine, reports, said=_said(outputs))
        finally:
            engine.shutdown()

    return asyncio.run(main())


def routed(model):
    """Decode with ``LLM``, profiled: the control of the two above."""
    import numpy as np

    images = [np.full((6, 32, 32), 100, np.uint16)] * 2
    with _llm(model, distributed_executor_backend="mp") as llm:
        llm.generate(images, use_tqdm=False)
        with profiling() as reports:
            results = llm.generate(images, use_tqdm=False)
        return _describe(llm.llm_engine, reports, said=[str(result.outputs.array.shape) for result in results])


def drifted(model, routed_model):
    """Generate text, then try all that needs the hooks."""
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from vllm_mmout.engine.hooks import install as hooks

    with _llm(model, distributed_executor_backend="mp", **TEXT) as llm:
        outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), use_tqdm=False)
        attempts = {
            "install": hooks.install,
            "LLM": lambda: LLM(routed_model, **SMALL),
            "AsyncLLM": lambda: AsyncLLM.from_engine_args(AsyncEngineArgs(routed_model, **SMALL)),
        }
        errors = {}
        for name, attempt in attempts.items():
            try:
                attempt()
            except Exception as error:  # noqa: BLE001 - the test looks at whatever it is
                errors[name] = [type(error).__name__, str(error)]
        again = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), use_tqdm=False)
        return _describe(
            llm.llm_engine,
            {},
            said=_said(outputs),
            again=_said(again),
            errors=errors,
            installed=sorted(hooks._installed),
        )


def _attempt(call):
    """What a call gives, or the type of what it raises."""
    try:
        return str(call())
    except Exception as error:  # noqa: BLE001 - the test looks at whatever it is
        return type(error).__name__


def stream_interval(model, table):
    """Ask an engine that streams every fourth token only, for raw and, on a bound one, for decoded output."""
    import numpy as np

    image = np.full((6, 32, 32), 100, np.uint16)
    prompt = {"prompt_token_ids": [1], "multi_modal_data": {"image": image}}
    options = {"stream_interval": 4, "distributed_executor_backend": "uni", "additional_config": {"mmout": table}}
    with _llm(model, **options) as llm:
        answer = {
            "encode": _attempt(
                lambda: llm.encode(prompt, pooling_task="plugin", use_tqdm=False)[0].outputs.data.shape,
            )
        }
        if table.get("output_processor") != "none":
            answer["generate"] = _attempt(lambda: llm.generate(image, use_tqdm=False)[0].outputs.array.shape)
        return answer


def token_only(model, table):
    """Send nothing but a token to a model that takes pictures, then a picture."""
    import numpy as np

    image = {"prompt_token_ids": [1], "multi_modal_data": {"image": np.full((6, 32, 32), 100, np.uint16)}}
    with _llm(model, distributed_executor_backend="uni", additional_config={"mmout": table}) as llm:
        return {
            name: _attempt(lambda: llm.encode(prompt, pooling_task="plugin", use_tqdm=False)[0].outputs.data.shape)  # noqa: B023
            for name, prompt in {"tokens": {"prompt_token_ids": [1]}, "image": image}.items()
        }


if __name__ == "__main__":
    print(ANSWER + json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)  # noqa: T201
