"""Model Runner V2 on a machine without a GPU: with this folder on PYTHONPATH, in every process of an engine.

vLLM refuses it where Triton has no backend for the machine. Triton's own interpreter runs the runner's kernels in
numpy, slowly and right; all that is missing is an entry that vLLM's check finds.
"""

import os

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" and not os.path.exists("/dev/nvidiactl"):  # noqa: PTH110 - early
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.backends

    class _Driver:
        @staticmethod
        def is_active():
            return True

    class _Backend:
        driver = _Driver
        compiler = None

    triton.backends.backends["cpu"] = _Backend
