"""Makes vLLM drift, in every process that starts with this folder on its path: as a later version might.

``RequestState.make_request_output`` names its parameters otherwise; ``WorkerWrapperBase`` no longer defines
``init_device`` itself. vLLM works with both.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from functools import partial


def rename_parameters(module):
    original = module.RequestState.make_request_output

    def make_request_output(self, tokens, tensor, reason, *args, **kwargs):
        return original(self, tokens, tensor, reason, *args, **kwargs)

    module.RequestState.make_request_output = make_request_output


def move_method(module):
    wrapper = module.WorkerWrapperBase
    original, others = wrapper.init_device, wrapper.__getattr__
    wrapper.__getattr__ = lambda self, name: partial(original, self) if name == "init_device" else others(self, name)
    del wrapper.init_device


DRIFTS = {
    "vllm.v1.engine.output_processor": rename_parameters,
    "vllm.v1.worker.worker_base": move_method,
}


class Drift(importlib.abc.MetaPathFinder):
    """Finds the modules that drift and changes them when they have been run."""

    def find_spec(self, name, path=None, target=None):
        drift = DRIFTS.pop(name, None)
        if drift is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            drift(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Drift())
