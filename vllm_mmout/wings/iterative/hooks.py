"""List the internal methods and attributes of vLLM that iterative models use, and the reason for each use."""

from __future__ import annotations

from typing import Final

from vllm_mmout.engine.hooks.hook import CORE, Hook
from vllm_mmout.private_names import Contact

_UNTIL = "vLLM has a scheduler of steps"

STEP_HOOKS: Final = (
    Hook(
        "vllm.v1.core.sched.scheduler",
        "Scheduler.schedule",
        (),
        "overridden if a model is iterative: a request that runs alone gets only one token per step, too",
        "0.11",
        _UNTIL,
        where=CORE,
    ),
    Hook(
        "vllm.v1.core.sched.scheduler",
        "Scheduler.update_from_output",
        ("scheduler_output", "model_runner_output"),
        "overridden if a model is iterative: forwards previews, which come before the result",
        "0.11",
        _UNTIL,
        where=CORE,
    ),
    Contact(
        "vllm.v1.core.sched.scheduler",
        ("Scheduler.get_request_counts", "Scheduler.max_num_running_reqs", "Scheduler.max_num_scheduled_tokens"),
        "schedule steps",
    ),
    Contact(
        "vllm.v1.pool.metadata",
        ("PoolingMetadata.get_pooling_cursor", "PoolingMetadata.pooling_states"),
        "keep a request's state",
    ),
    Contact("vllm.config.scheduler", ("SchedulerConfig.scheduler_cls",), "name the scheduler"),
)
