"""`BoundWorker`: vLLM's worker class for models with output processors."""

from __future__ import annotations

import faulthandler
import multiprocessing
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vllm.v1.worker.worker_base import WorkerBase

from vllm_mmout.engine.hooks.startup import reporting_to_frontend
from vllm_mmout.engine.memory import keep_freed_memory
from vllm_mmout.engine.trace import Trace
from vllm_mmout.engine.worker.resting import rest_between_steps
from vllm_mmout.log import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_mmout.engine.settings import Compile
    from vllm_mmout.processors.base import OutputProcessor


class BoundWorker(WorkerBase):
    """vLLM's worker for a model with output processors. It calls their ``reduce`` after each forward pass."""

    mmout: Mapping[str, OutputProcessor]
    compile: Compile
    trace: str | None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model, run it once as a test, wrap its pooler, and start to record times if the engine is traced."""
        from vllm_mmout.engine.worker.reduce import wrap_pooler  # imports vLLM's layers, which need the device

        with reporting_to_frontend():
            super().load_model(*args, **kwargs)
            model: Any = self.get_model()
            model.measuring = True
            if hasattr(model, "try_out"):
                model.try_out()
            wrap_pooler(model, self.mmout)
            if self.trace is not None and self.is_driver_worker and self.device is not None:
                from vllm_mmout.engine.worker.traced import StepTrace

                StepTrace(Trace(self.trace), self.device).watch(self, model)
        if self.vllm_config.device_config.device_type == "cpu":
            keep_freed_memory()
        if multiprocessing.parent_process() is not None:  # the worker does not run in the user's own process
            rest_between_steps()
            with suppress(Exception):  # the process may lack a standard error
                faulthandler.enable()  # writes the stacks if a step hangs and the core aborts this process

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step as vLLM does, and attach the early outputs of unfinished requests to its output."""
        model: Any = self.get_model()
        return model.pooler.reports.attach_to(super().execute_model(*args, **kwargs))

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Run vLLM's ``sample_tokens``, and attach the early outputs of unfinished requests to its output.

        Model Runner V2 calls the pooler here instead of in ``execute_model``.
        """
        model: Any = self.get_model()
        return model.pooler.reports.attach_to(super().sample_tokens(*args, **kwargs))

    def compile_or_warm_up_model(self) -> Any:
        """Warm the model up as vLLM does, then compile ``forward`` if the engine's ``compile`` setting asks for it.

        vLLM has measured memory by then. From here on ``forward`` serves requests.
        """
        result = super().compile_or_warm_up_model()
        model: Any = self.get_model()
        model.measuring = False
        if self.compile != "off":
            if hasattr(model, "compile_forward"):
                max_requests = self.vllm_config.scheduler_config.max_num_seqs
                model.compile_forward(max_requests, if_faster=self.compile == "auto")
            else:
                logger.warning("%s is written for vLLM, so `compile` does not compile it", type(model).__name__)
        return result
