"""Making an ``LLM`` from a command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_mmout.errors import OptionError

if TYPE_CHECKING:
    from vllm import LLM


def make_llm(model: str, flags: Sequence[str]) -> LLM:
    """Start an engine.

    Args:
        model: a folder, a hub id, or the name of an embedded model.
        flags: flags of ``vllm serve`` for the engine.

    Raises:
        OptionError: a flag is unknown to vLLM.
        HookError: vLLM has drifted from what the hooks were written for.

    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; single-pass models use none of it

    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from vllm_mmout.engine.hooks import install

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))
    options, unknown = parser.parse_known_args(["--model", _resolved(model), *flags])
    if unknown:
        raise OptionError(f"unknown flags: {' '.join(unknown)}; engine flags are those of vllm serve")
    install()
    return LLM.from_engine_args(EngineArgs.from_cli_args(options))


def _resolved(model: str) -> str:
    from vllm_mmout.models.embedded import EMBEDDED_MODELS, embedded_model

    return str(embedded_model(model)) if model in EMBEDDED_MODELS and not Path(model).exists() else model
