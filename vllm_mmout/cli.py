"""The command ``vllm-mmout``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from vllm_mmout import __version__
from vllm_mmout.commands import demo, doctor, processors, run
from vllm_mmout.errors import MMOutError, OptionError

COMMANDS = (demo, run, processors, doctor)
INTERRUPTED = 130
"""Exit status of a command that was ended by Ctrl-C, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name, those of this process by default.

    Returns:
        The exit status: 0, 1 where the command's work failed, 2 where its arguments are wrong.

    """
    parser = argparse.ArgumentParser(prog="vllm-mmout", description="Images, rasters and structured data out of vLLM.")
    parser.add_argument("--version", action="version", version=f"vllm-mmout {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    options, rest = parser.parse_known_args(argv)
    if rest and not getattr(options, "takes_engine_flags", False):
        parser.error(f"unknown arguments: {' '.join(rest)}")
    options.engine_flags = rest
    try:
        return int(options.run(options))
    except OptionError as error:
        print(f"vllm-mmout: {error}", file=sys.stderr)
        return 2
    except MMOutError as error:
        print(f"vllm-mmout: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vllm-mmout: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
