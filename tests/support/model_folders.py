"""Model folders of tests' own models, and engines of them in this process."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import contextmanager, suppress

import pytest
from processes import descendants

ENGINE = {"gpu_memory_utilization": 0.3, "distributed_executor_backend": "uni"}
"""Keeps an engine small: one process for the core and its worker, a third of the memory at most."""


KEPT = []
"""All engines of this process: when one is collected, vLLM ends what the others share with it."""


def config_of(model, **entries):
    """A ``config.json`` that names a class by its path."""
    config = {
        "architectures": [model.__name__],
        "model_type": "mmout",
        "dtype": "float32",
        "mmout": {"model": f"{model.__module__}:{model.__qualname__}"},
    }
    table = config["mmout"] | entries.pop("mmout", {})
    return config | entries | {"mmout": table}


def weights_of(model, config, seed=0):
    """Random weights of a model, the same ones for the same seed."""
    import torch

    torch.manual_seed(seed)
    return model(config).state_dict()


def write_folder(folder, config, weights):
    """Write a model folder; weights None leaves the file out."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights is not None:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    return str(folder)


def folder_of(folder, model, **entries):
    """The folder of a model with random weights, and these."""
    config = config_of(model, **entries)
    weights = weights_of(model, config)
    return write_folder(folder, config, weights), weights


@contextmanager
def vllm_starts(switch):
    """Have vLLM start engines in processes of their own, "1", or in this one, "0"."""
    from vllm import envs

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", switch)
        envs.disable_envs_cache()  # an engine made before has frozen what vLLM reads of the environment
        yield


def kept_engine(folder, **arguments):
    """An ``LLM`` in this process, which stays: with the first that goes all others lose vLLM's parallel groups."""
    from vllm import LLM

    with vllm_starts("0"), pytest.MonkeyPatch.context() as patch:
        if "kv_cache_memory_bytes" in arguments:  # the environment comes first: a GiB for each engine that stays
            patch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
        if KEPT:  # the first has replaced the kernels of this process, which takes a second
            patch.setattr("vllm.platforms.cpu.CpuPlatform.register_triton_kernel_overrides", lambda *_: None)
        KEPT.append(LLM(str(folder), **arguments))
    return KEPT[-1]


def engine_here(folder, **arguments):
    """An ``LLM`` in this process."""
    return kept_engine(folder, **ENGINE, **arguments)


def engine_elsewhere(folder, **arguments):
    """An ``LLM`` whose engine runs in processes of its own; end it with ``engine_core.shutdown()``."""
    from quick_engines import quick_engines
    from vllm import LLM

    with vllm_starts("1"), quick_engines():
        return LLM(folder, **ENGINE, **arguments)


def runner_of(llm):
    """The model runner of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def children():
    """Return the command lines of the processes below this one, by id.

    Zombies are left out, and so are processes in a session that one of the others leads: servers, and other runs of
    tests.
    """
    import psutil

    below, lines = descendants(), {}
    leaders = {child.pid for child in below}
    for child in below:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):  # a zombie raises the first of them
            if os.getsid(child.pid) not in leaders:
                lines[child.pid] = " ".join(child.cmdline())
    return lines


def says(error, *parts):
    """A message holds each of its parts."""
    assert [part for part in parts if part not in str(error)] == [], str(error)


async def answers_of_async(folder, inputs, **arguments):
    """What an ``AsyncLLM`` gives for inputs that are handed over in one moment; its engine has a process of its own."""
    from quick_engines import quick_engines
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    with quick_engines():
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(folder), **ENGINE, **arguments))

    async def answer(data):
        (result,) = [result async for result in engine.generate(data)]
        return result.outputs

    try:
        return await asyncio.gather(*map(answer, inputs))
    finally:
        engine.shutdown()
