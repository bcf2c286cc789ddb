"""Model Runner V2 on a machine without a GPU: with this folder on PYTHONPATH, in every process of an engine.

vLLM refuses it where Triton has no backend for the machine. Triton's own interpreter runs the runner's kernels in
numpy, slowly and right; all that is missing is an entry that vLLM's check finds, and that ``torch.compile`` names in
the keys of its cache.
"""

import importlib.metadata
import os

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" and not os.path.exists("/dev/nvidiactl"):  # noqa: PTH110 - early
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.backends.compiler

    class _Driver:
        @staticmethod
        def is_active():
            return True

        @staticmethod
        def get_current_target():
            return triton.backends.compiler.GPUTarget("cpu", "interpreter", 1)

    class _Compiler:
        def __init__(self, target):
            pass

        @staticmethod
        def supports_target(target):
            return True

        def hash(self):
            return "interpreter"

        def parse_options(self, options):
            return None

    class _Backend:
        driver = _Driver
        compiler = _Compiler

    # A vLLM built for the CPU looks for the name "cpu", and one built for GPUs takes any other.
    is_for_gpus = any(importlib.metadata.distributions(name="vllm"))
    triton.backends.backends["interpreter" if is_for_gpus else "cpu"] = _Backend
