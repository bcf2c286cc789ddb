"""StepScheduler: vLLM's scheduler, for requests whose tokens are steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.scheduler import Scheduler

from vllm_mmout.engine.worker.reports import add_reports

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput


class StepScheduler(Scheduler):
    """Gives each request one token a step, and sends on what comes before a result."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        # vLLM takes it back of models without a cache of keys and values; a prompt longer than the budget of a step
        # would then wait for ever.
        vllm_config.scheduler_config.enable_chunked_prefill = True
        vllm_config.scheduler_config.long_prefill_token_threshold = 1
        super().__init__(vllm_config, *args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """As vLLM's, which gives a request that is alone all the tokens of a step."""
        there = sum(self.get_request_counts())
        self.max_num_scheduled_tokens = max(1, min(there, self.max_num_running_reqs))
        return super().schedule(*args, **kwargs)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """As vLLM's, with what requests give before their result."""
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        add_reports(outputs, model_runner_output, self.requests)
        return outputs
