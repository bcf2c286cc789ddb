"""Start vLLM's own server in this process, with the routes and flags of this package added."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from vllm_mmout.engine.hooks.endpoint_plugin import SWITCH, our_endpoint
from vllm_mmout.engine.settings import set_option
from vllm_mmout.engine.trace import Trace
from vllm_mmout.errors import OptionError
from vllm_mmout.models.embedded.folders import found_model
from vllm_mmout.serving.options import PREFIX, ServingOptions, flag
from vllm_mmout.serving.response.temporary_folders import TemporaryFolder, remove_abandoned
from vllm_mmout.wing import extensions

GENERAL_PLUGIN: Final = "vllm_mmout"
"""Name of this package's entry point among vLLM's general plugins. All processes of the engine load it."""
TASK: Final = "--task"
"""Flag ``--task`` of older vLLM releases. If the installed vLLM lacks it, the flag is ignored with a warning."""
_TASK: Final = f"{PREFIX}task"
USAGE: Final = "vllm-mmout serve [MODEL] [options]"
_log = logging.getLogger("vllm.mmout")


def launch(arguments: Sequence[str]) -> None:
    """Run the server with these command-line arguments until a signal ends it."""
    with _switched_on():
        command, args = _parse(arguments)
        _check_args(args)
        _add_plugins(args)
        _resolve_model(args)
        _start_trace(args)
        from vllm_mmout.engine.hooks.install import install

        install()
        our_endpoint()
        _configure_logging(args)
        command.validate(args)
        with _results_folder(args):
            command.cmd(args)


@contextmanager
def _switched_on() -> Iterator[None]:
    """Set the environment variables that make this process and its children load the plugins of this package."""
    # vLLM's command line sets the start method of workers in a function that moves from release to release.
    changes = {SWITCH: "1", "VLLM_WORKER_MULTIPROC_METHOD": os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "spawn")}
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None:
        changes["VLLM_PLUGINS"] = _with_plugin(allowed, GENERAL_PLUGIN)
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _parse(arguments: Sequence[str]) -> tuple[Any, argparse.Namespace]:
    """Parse the arguments of ``serve`` with vLLM's parser. Return vLLM's command object and the parsed arguments."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    command = ServeSubcommand()
    parser = FlexibleArgumentParser(prog="vllm-mmout")  # type: ignore[no-untyped-call]
    serve: argparse.ArgumentParser = command.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    serve.usage = USAGE
    serve.epilog = (serve.epilog or "").replace("vllm serve", "vllm-mmout serve")
    ServingOptions.add_arguments(serve)
    if not serve._option_string_actions.keys() & {TASK}:  # noqa: SLF001 - argparse has no public list of flags
        serve.add_argument(TASK, nargs="?", dest=_TASK, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    # vLLM's parser finds the model and the file of arguments after the name of the command.
    args: argparse.Namespace = parser.parse_args(["serve", *arguments])
    if hasattr(args, _TASK):
        _leave_out_task(serve, args)
    return command, args


def _leave_out_task(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Remove the argument ``--task``, which only older releases of vLLM accept, and log a warning."""
    value = getattr(args, _TASK)
    if value is None:
        parser.error(f"unrecognized arguments: {TASK}")
    delattr(args, _TASK)
    _log.warning(
        "%s %s is no longer an argument of vLLM, and is left out: what a model answers follows from its folder",
        TASK,
        value,
    )


def _check_args(args: argparse.Namespace) -> None:
    """Raise OptionError if an argument is invalid, or if vLLM would start a server without this package's routes."""
    from vllm import envs

    root = ServingOptions.from_args(args).output_root
    if root is not None and not Path(root).is_dir():
        raise OptionError(f"{flag('output_root')} must be a folder, got {root!r}; make it first")
    if getattr(args, "grpc", False):
        raise OptionError("--grpc starts a server without HTTP routes; leave it out, or use vllm serve")
    if getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
        raise OptionError(
            "VLLM_USE_RUST_FRONTEND is set, and that server has none of our routes; unset it, or use vllm serve"
        )


def _add_plugins(args: argparse.Namespace) -> None:
    """Add the needed plugins of extension packages to ``VLLM_PLUGINS``. Do nothing if the variable is not set."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None:
        for extension in extensions("routes"):
            for name in extension().needed_plugins(args):
                os.environ["VLLM_PLUGINS"] = allowed = _with_plugin(allowed, name)


def _with_plugin(allowed: str, name: str) -> str:
    """Return a comma-separated list of plugins with ``name`` added if it is missing."""
    return allowed if name in allowed.split(",") else f"{allowed},{name}"


def _resolve_model(args: argparse.Namespace) -> None:
    """Replace the name of a model that is part of this package, such as "water-index", by the path of its folder.

    Clients still use the name.
    """
    name = args.model if args.model_tag is None else args.model_tag
    folder = found_model(name)
    if folder != name:
        args.model = args.model_tag = folder
        args.served_model_name = args.served_model_name or [name]


def _start_trace(args: argparse.Namespace) -> None:
    """Create the trace file, and pass its path to the engine, so that all processes append to it."""
    file = ServingOptions.from_args(args).trace
    if file is not None:
        Trace.begin(file)
        set_option(args, "trace", file)


def _configure_logging(args: argparse.Namespace) -> None:
    """Configure logging in the same way as vLLM's command line."""
    from vllm import logger

    configure = getattr(logger, "configure_logging_from_args", None)  # flags for the log are new in 0.31
    if configure is not None:
        configure(args)


@contextmanager
def _results_folder(args: argparse.Namespace) -> Iterator[None]:
    """Create a temporary folder for stored results, and remove the folder when the ``with`` block ends.

    If the user has set a folder for results, no temporary folder is created.
    """
    for folder_path in remove_abandoned():
        _log.info("%s of a server that was killed is removed", folder_path)
    if hasattr(args, f"{PREFIX}results_dir"):
        yield
        return
    folder = TemporaryFolder()
    try:
        setattr(args, f"{PREFIX}results_dir", str(folder.path))
        yield
    finally:
        folder.remove()
