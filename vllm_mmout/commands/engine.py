"""Start vLLM's ``LLM`` for the commands of ``vllm-mmout``. vLLM logs to stderr, so that stdout has only results."""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn, cast

from vllm_mmout.engine.settings import set_option
from vllm_mmout.errors import MMOutError, OptionError
from vllm_mmout.models.embedded.folders import found_model

if TYPE_CHECKING:
    from vllm import LLM
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

    from vllm_mmout.engine.binding import EngineBinding
    from vllm_mmout.engine.model_info import ModelInfo
    from vllm_mmout.engine.request.llm import BoundLLM


QUIET: Final = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",  # for the engine's own processes
}
"""Environment variables that silence vLLM and torch. They are not set if the user has set ``VLLM_LOGGING_LEVEL``."""
ALWAYS: Final = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; single-pass models use no KV cache
}
"""Environment variables that every command sets unless the user has set them."""


def prepare_environment() -> None:
    """Set default environment variables. They silence vLLM's log unless the user has set ``VLLM_LOGGING_LEVEL``."""
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        logging.getLogger("vllm").setLevel(logging.ERROR)  # for messages before vLLM configures its log
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
    for name, value in ALWAYS.items():
        os.environ.setdefault(name, value)


@contextmanager
def engine(
    model: str, flags: Sequence[str], own_flags: Sequence[str] = (), *, trace: str | None = None
) -> Iterator[BoundLLM]:
    """Start an ``LLM`` with the flags of ``vllm serve``, yield it, and stop all its processes afterwards.

    ``own_flags`` are the command's flags, for hints about misspelt flags. ``trace`` is the path of the engine's trace
    file.
    """
    folder = found_model(model)
    prepare_environment()
    check_installed()
    from vllm_mmout.engine.hooks.install import install

    install()
    options = _parsed(folder, flags, own_flags)
    if trace is not None:
        set_option(options, "trace", trace)
    llm = _start(model, options)
    try:
        yield cast("BoundLLM", llm)  # bound, since `_start` refuses a model without an output processor
    finally:
        llm.llm_engine.engine_core.shutdown()


def binding_of(model: str, flags: Sequence[str]) -> EngineBinding:
    """Return the output processors and settings of an engine with these flags, without starting it."""
    return _bound(_configured(model, flags))


def info_of(model: str, flags: Sequence[str]) -> ModelInfo:
    """Describe a model, as an engine with these flags would serve it, without starting the engine."""
    try:
        config = _configured(model, flags)
    except MMOutError:
        raise
    except (OSError, ValueError, ImportError) as error:  # a folder or hub id that vLLM or transformers cannot read
        raise MMOutError(
            f"{model} cannot be described: {_reason(error)}\nA model of the hub must be in the cache; HF_HUB_OFFLINE=0"
            " in the environment fetches its files"
        ) from error
    from vllm_mmout.engine.model_info import model_info

    return model_info(_bound(config), config.model_config)


def _configured(model: str, flags: Sequence[str]) -> VllmConfig:
    """Return vLLM's config for an engine with these flags. Raise OptionError if the model lacks an output processor."""
    folder = found_model(model)
    prepare_environment()
    check_installed()
    from vllm.engine.arg_utils import EngineArgs

    from vllm_mmout.engine.hooks.install import install

    install()
    engine_args = EngineArgs.from_cli_args(_parsed(folder, flags))
    _check_processor(model, engine_args)
    config: VllmConfig = engine_args.create_engine_config()
    return config


def _bound(config: VllmConfig) -> EngineBinding:
    from vllm_mmout.engine.binding import make_binding

    return cast("EngineBinding", make_binding(config))


def check_installed() -> None:
    """Raise MMOutError if vLLM cannot be imported."""
    try:
        import vllm  # noqa: F401 - only to see whether it works
    except ImportError as error:
        raise MMOutError(
            f'vLLM cannot be imported ({error}); pip install "vllm-mmout[gpu]" or "vllm-mmout[cpu]"'
        ) from error


def _parsed(model: str, flags: Sequence[str], own_flags: Sequence[str] = ()) -> argparse.Namespace:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class EngineFlags(FlexibleArgumentParser):
        """Parser of vLLM's engine flags. An error is a single line instead of five pages of usage."""

        def error(self, message: str) -> NoReturn:
            raise OptionError(_with_flag_hint(message, [*own_flags, *self._option_string_actions]))

    parser = EngineArgs.add_cli_args(EngineFlags(add_help=False))  # type: ignore[no-untyped-call]
    options: argparse.Namespace = parser.parse_args(["--model", model, "--no-use-tqdm-on-load", *flags])
    if options.tensor_parallel_size * options.pipeline_parallel_size * options.data_parallel_size == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # a single device runs in this process
    return options


def _with_flag_hint(message: str, flags: Sequence[str]) -> str:
    """Return argparse's error message. For an unknown argument, add the most similar of ``flags`` as a hint."""
    _, unknown, arguments = message.partition("unrecognized arguments: ")
    if not unknown:
        return message
    near = difflib.get_close_matches(arguments.split()[0], flags, n=1)
    hint = f"did you mean {near[0]}?" if near else "engine flags are those of vllm serve"
    return f"unknown arguments: {arguments}; {hint}"


def _start(model: str, options: argparse.Namespace) -> LLM:
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    try:
        engine_args = EngineArgs.from_cli_args(options)
        _check_processor(model, engine_args)
        return LLM.from_engine_args(engine_args)
    except MMOutError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # vLLM's at start-up: bad flags, no such model, no memory
        raise MMOutError(
            f"the engine did not start with {model}: {_reason(error)}\nVLLM_LOGGING_LEVEL=INFO shows its log"
        ) from error


def _check_processor(model: str, engine_args: EngineArgs) -> None:
    """Raise OptionError for a model without an output processor, before its weights are loaded."""
    from vllm_mmout.engine.binding import resolve_choice
    from vllm_mmout.engine.hooks.unserved_folders import remedy

    if resolve_choice(engine_args.create_engine_config()) is None:
        usual = (
            "name one with --additional-config"
            ' \'{"mmout": {"output_processor": NAME}}\' (vllm-mmout processors lists them)'
        )
        raise OptionError(
            f"{model} has no output processor, so its output cannot be decoded; {remedy(engine_args.model) or usual}"
        )


def _reason(error: Exception) -> str:
    """Return the message of an exception, without the text that pydantic adds around it."""
    details = getattr(error, "errors", None)
    if callable(details):
        return "; ".join(str(detail["msg"]).removeprefix("Value error, ") for detail in details())
    return str(error) or type(error).__name__
