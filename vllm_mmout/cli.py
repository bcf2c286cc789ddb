"""The command line program ``vllm-mmout``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vllm_mmout import __version__
from vllm_mmout.commands import areas, demo, doctor, figure, info, patch, processors, run, serve
from vllm_mmout.errors import MMOutError, OptionError, RegistrationError
from vllm_mmout.wing import wings

COMMANDS = (demo, run, serve, figure, areas, info, processors, doctor, patch)
INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program ``vllm-mmout`` with the arguments ``argv``, and return its exit status.

    Args:
        argv: arguments without the program's name; by default the arguments of this process.

    Returns:
        The exit status: 0 for success, 1 if the command's work failed, 2 if its arguments are wrong.

    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == [serve.NAME]:  # before argparse, which would take -h, -- and flags that look like its own
        return _status(lambda: serve.run(arguments[1:]))
    try:
        return _status(lambda: _run(arguments))
    except KeyboardInterrupt:
        print("vllm-mmout: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    """Parse the arguments with argparse, and run the command that they name."""
    parser = argparse.ArgumentParser(prog="vllm-mmout", description="Images, rasters and structured data out of vLLM.")
    parser.add_argument("--version", action="version", version=f"vllm-mmout {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (*COMMANDS, *_extension_commands()):
        command.add_parser(subparsers)
    options, rest = parser.parse_known_args(arguments)
    if rest and not getattr(options, "takes_engine_flags", False):
        parser.error(f"unknown arguments: {' '.join(rest)}")
    options.engine_flags = rest
    return int(options.run(options))


def _extension_commands() -> Iterator[Any]:
    """Yield the command modules of extension packages. A module that cannot be imported is reported and skipped."""
    for wing in wings():
        try:
            command = wing.load("command")
        except RegistrationError as error:
            print(f"vllm-mmout: {error}", file=sys.stderr)
        else:
            yield from () if command is None else (command,)


def _status(command: Callable[[], int]) -> int:
    """Run a command, and return its exit status. An `MMOutError` is printed on stderr."""
    try:
        return command()
    except OptionError as error:
        print(f"vllm-mmout: {error}", file=sys.stderr)
        return 2
    except MMOutError as error:
        print(f"vllm-mmout: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
