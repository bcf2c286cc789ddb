"""Engines of the tests in this folder."""

from __future__ import annotations

import pytest

ENGINE = {"gpu_memory_utilization": 0.3, "distributed_executor_backend": "uni"}
"""Keeps one small."""


def started(folder, dtype, processor=None, **options):
    """An ``LLM`` in this process.

    Args:
        folder: the model's.
        dtype: "float32" or "bfloat16".
        processor: its output processor, None for the one of the folder's task.
        options: of the engine.

    """
    from vllm import LLM, envs

    if processor is not None:
        options["additional_config"] = {"mmout": {"output_processor": processor}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        envs.disable_envs_cache()  # an engine made before has frozen what vLLM reads of the environment
        return LLM(str(folder), dtype=dtype, **options, **ENGINE)
