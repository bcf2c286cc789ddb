"""Define the command ``vllm-mmout submit``, which sends a scene to a server as a job and downloads the result."""

from __future__ import annotations

import argparse

from vllm_mmout.commands import Subparsers
from vllm_mmout.commands.request_flags import OPTIONS, flag


def add_parser(subparsers: Subparsers) -> None:
    """Add the parser of ``submit`` and its arguments."""
    parser = subparsers.add_parser(
        "submit",
        help="send a scene, or several scenes of one map, to a server and download the result",
        description="Send a scene to a vllm-mmout server as a job and download the result. Several FILEs are the bands"
        " of one input, one file per band; with --mosaic they are scenes whose results become one map.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="FILE",
        help="image file, GeoTIFF, or address (https://, s3://, gs://, az://, file://) that the server reads",
    )
    parser.add_argument(
        "--server", required=True, metavar="URL", help="address of the server, for example http://localhost:8000"
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="PATH",
        help="file to write (its suffix sets the format; several kinds of output get a file each beside it), or folder",
    )
    parser.add_argument("--resume", metavar="ID", help="resume a job that was sent before, by its ID")
    parser.add_argument(
        "--api-key", metavar="KEY", help="API key of the server; default: VLLM_API_KEY or OPENAI_API_KEY"
    )
    parser.add_argument("--model", metavar="NAME", help="name of a model on the server; default: its base model")
    parser.add_argument("--output-format", metavar="NAME", help="tiff, png, ...; default: the suffix of -o")
    parser.add_argument("--keep", action="store_true", help="never cancel or delete the job on the server")
    parser.add_argument("--no-wait", action="store_true", help="print the job's id and exit without waiting")
    for name, settings in OPTIONS.items():
        parser.add_argument(flag(name), **settings)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``vllm-mmout submit``. The job client is imported only here, so that other commands start faster."""
    from vllm_mmout.wings.jobs.client.command import run_command

    return run_command(options)
