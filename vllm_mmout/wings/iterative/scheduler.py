"""Make vLLM run one denoising step of each request in each engine step.

vLLM counts a denoising step as one token of the request's prompt.
"""

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
    """vLLM's scheduler, limited to one denoising step per request in each engine step. It also outputs previews.

    vLLM counts a denoising step as one token of the request's prompt.
    """

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        # vLLM disables chunked prefill for models without a KV cache. A prompt longer than a step's token budget
        # would then wait forever.
        vllm_config.scheduler_config.enable_chunked_prefill = True
        vllm_config.scheduler_config.long_prefill_token_threshold = 1
        super().__init__(vllm_config, *args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Schedule at most one token per request. vLLM's scheduler could give a request all its tokens at once."""
        num_requests = sum(self.get_request_counts())
        self.max_num_scheduled_tokens = max(1, min(num_requests, self.max_num_running_reqs))
        return super().schedule(*args, **kwargs)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Update the requests after an engine step, as vLLM does, and add previews to the outputs."""
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        add_reports(outputs, model_runner_output, self.requests)
        return outputs
