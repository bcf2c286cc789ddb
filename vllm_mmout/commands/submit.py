"""``vllm-mmout submit``: a scene to a server as a job, and its result back."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_mmout.commands import Subparsers
from vllm_mmout.commands.run_options import OPTIONS, flag
from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams
from vllm_mmout.raster.remote.address import stem

if TYPE_CHECKING:
    from vllm_mmout.client.form import Form
    from vllm_mmout.client.job import Job
    from vllm_mmout.client.session import Session
    from vllm_mmout.client.targets import Target

_ADDRESS = re.compile(r"(https?|file)://|data:", re.IGNORECASE)
"""How what is sent as text begins."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")


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
    """Run the command; what can be known to be wrong is found before anything is sent."""
    fields = _request_fields(options)
    _check_together(options, fields)
    from vllm_mmout.client.address import api_key, server_address
    from vllm_mmout.client.bars import say
    from vllm_mmout.client.patience import client_options
    from vllm_mmout.client.session import Session
    from vllm_mmout.client.targets import Target

    target = None if options.out is None else Target.of(options.out)
    if target is not None and options.resume is None:
        asked = target.output_format(options.output_format)
        fields |= {} if asked is None else {"output_format": asked}
    elif options.output_format is not None:
        fields["output_format"] = options.output_format
    form = None if options.resume is not None else _form(options.inputs, fields)
    key = api_key(options.api_key, os.environ)
    session = Session(server_address(options.server), key, client_options(), say)
    with contextlib.closing(session):
        if form is None:
            _finish(session, _found(session, options.resume), target, options)
        else:
            job = _sent(session, form)
            if options.no_wait:
                print(job.id)
            else:
                _finish(session, job, target, options)
    return 0


def _sent(session: Session, form: Form) -> Job:
    """The job that a server makes of a form."""
    from vllm_mmout.client.bars import Bar
    from vllm_mmout.client.jobs import check_server, submit

    check_server(session)
    with Bar("Upload", form.size) as bar:
        return submit(session, form, bar.to)


def _found(session: Session, job: str) -> Job:
    from vllm_mmout.client.jobs import look

    return look(session, job)


def _finish(session: Session, job: Job, target: Target | None, options: argparse.Namespace) -> None:
    """Wait for a job, write its results, and have the server forget it."""
    from vllm_mmout.client.bars import Bar, say
    from vllm_mmout.client.errors import ServerError
    from vllm_mmout.client.jobs import remove, wait

    try:
        if options.resume is None:
            say(f"job {job.id}; to go on with it later: {_resuming(options, job.id)}")
        with Bar("Tiles", unit="tile") as bar:
            job = wait(session, job, bar.show)
    except KeyboardInterrupt:
        if not options.keep:
            _cancel(session, job.id)
        raise
    if target is None:  # which `_check_together` excludes
        return
    try:
        files = _fetched(session, job, target, stem(options.inputs[0]) if options.inputs else stem(job.name))
    except KeyboardInterrupt:
        say(f"what was fetched is kept; go on with {_resuming(options, job.id)}")
        raise
    for file in files:
        print(file)
    if not options.keep:
        try:
            remove(session, job.id)
        except ServerError as error:
            say(f"the result is here; the server keeps the job {job.id}: {error}")


def _fetched(session: Session, job: Job, target: Target, name: str) -> list[Path]:
    """The files of a job's results, written."""
    from vllm_mmout.client.bars import Bar
    from vllm_mmout.client.download import download, result_path
    from vllm_mmout.client.part_file import PartFile
    from vllm_mmout.client.targets import place

    files = target.files(name, job.outputs)
    for file, output in zip(files, job.outputs, strict=True):
        path = result_path(job.id, output)
        with Bar("Download", output.bytes) as bar, PartFile(file, f"{session.server}{path}") as part:
            download(session, path, output.bytes, part, bar.to)
            place(part.path, file, output)
            part.forget()
    return files


def _cancel(session: Session, job: str) -> None:
    """Take a job away that nobody waits for any more."""
    from vllm_mmout.client.bars import say
    from vllm_mmout.client.errors import ServerError
    from vllm_mmout.client.jobs import remove

    try:
        remove(session, job)
    except ServerError as error:
        say(f"the job {job} could not be cancelled: {error}")
    else:
        say(f"the job {job} is cancelled")


def _check_together(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Refuse arguments that do not go together."""
    if options.resume is None:
        if not options.inputs:
            raise OptionError("name a FILE to send, or a job with --resume ID")
        if options.out is None and not options.no_wait:
            raise OptionError("-o is missing; name the file to write, or leave the result on the server with --no-wait")
        return
    if not _ID.fullmatch(options.resume):
        raise OptionError(f"--resume {options.resume!r} is no id of a job, as scene_...")
    given = [flag(name) for name in fields] + ["--output-format"] * (options.output_format is not None)
    if options.inputs or given:
        what = ", ".join([*options.inputs, *given])
        raise OptionError(f"--resume goes on with a job as it was sent; leave {what} out")
    if options.no_wait:
        raise OptionError("--resume waits for a job, --no-wait does not; give one of them")
    if options.out is None:
        raise OptionError("-o is missing; name the file to write")


def _request_fields(options: argparse.Namespace) -> dict[str, str]:
    """The fields of the request but images and the format: those that are not as they are by default.

    Raises:
        OptionError: an option has a value that it cannot have, as in Python.

    """
    chosen = {name: getattr(options, name) for name in OPTIONS}
    usual = msgspec.structs.asdict(OutputParams())
    OutputParams(**chosen)
    fields = {name: _text(value) for name, value in chosen.items() if value != usual[name]}
    return fields | ({} if options.model is None else {"model": options.model})


def _text(value: Any) -> str:
    """A value as a form has it."""
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return repr(value) if isinstance(value, float) else str(value)


def _form(inputs: Sequence[str], fields: dict[str, str]) -> Form:
    """What is sent."""
    from vllm_mmout.client.form import Form

    texts = [name for name in inputs if _ADDRESS.match(name)]
    files = [Path(name) for name in inputs if not _ADDRESS.match(name)]
    if texts and files:
        raise OptionError(f"{texts[0][:100]} is an address and {files[0]} a file; send all of them in one way")
    named = [("image", text) for text in texts] + list(fields.items())
    return Form(named, [("image", file) for file in files])


def _resuming(options: argparse.Namespace, job: str) -> str:
    """What a user types to go on with a job; without a key, which a terminal would keep."""
    return f"vllm-mmout submit --resume {job} --server {options.server} -o {options.out}"
