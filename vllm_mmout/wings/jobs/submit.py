"""``vllm-mmout submit``: a scene to a server as a job, and its result back."""

from __future__ import annotations

import argparse

from vllm_mmout.commands import Subparsers
from vllm_mmout.commands.run import OPTIONS, flag


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command's arguments."""
    parser = subparsers.add_parser(
        "submit",
        help="send a scene to a server, and fetch its result",
        description="Send a scene to a server of vllm-mmout as a job, and fetch its result. Several FILEs are one"
        " input: a file a band.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "inputs", nargs="*", metavar="FILE", help="image file, GeoTIFF, or address that the server reads"
    )
    parser.add_argument(
        "--server", required=True, metavar="URL", help="address of the server, as http://localhost:8000"
    )
    parser.add_argument("-o", "--out", metavar="PATH", help="file to write (its suffix is the format), or folder")
    parser.add_argument("--resume", metavar="ID", help="go on with a job that was sent before")
    parser.add_argument("--api-key", metavar="KEY", help="key of the server; also by VLLM_API_KEY or OPENAI_API_KEY")
    parser.add_argument("--model", metavar="NAME", help="a model that the server serves; by default its own")
    parser.add_argument("--output-format", metavar="NAME", help="tiff, png, ...; by default as the suffix of -o says")
    parser.add_argument("--keep", action="store_true", help="leave the job on the server, whatever becomes of it here")
    parser.add_argument("--no-wait", action="store_true", help="print the job's id, and leave it to the server")
    for name, said in OPTIONS.items():
        parser.add_argument(flag(name), **said)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; its client is imported now."""
    from vllm_mmout.wings.jobs.client.command import run_command

    return run_command(options)
