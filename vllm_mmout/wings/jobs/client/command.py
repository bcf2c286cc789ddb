"""Implement ``vllm-mmout submit``: check the arguments, upload a scene, wait for its job, and save the result."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from tqdm.auto import tqdm

from vllm_mmout.commands.request_flags import OPTIONS, flag
from vllm_mmout.errors import OptionError
from vllm_mmout.geo import RETRIES, FetchOptions, file_stem, in_bucket, without_secrets
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.jobs.client.download import PartFile, download, result_path
from vllm_mmout.wings.jobs.client.form import MultipartForm
from vllm_mmout.wings.jobs.client.jobs import Job, check_server, get_job, remove, submit, wait
from vllm_mmout.wings.jobs.client.session import KEYS, ServerError, Session
from vllm_mmout.wings.jobs.client.targets import DownloadTarget, place

_ADDRESS = re.compile(r"(https?|file)://|data:", re.IGNORECASE)
"""Pattern for the start of a URL. URLs and bucket addresses are sent to the server as text. Any other input is the path
of a file to upload."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
_RETRIES = "8"
"""Default number of retries of a failed HTTP request. The pauses between the attempts add up to about 90 seconds.

A proxy has time to restart during the pauses.
"""


def run_command(options: argparse.Namespace) -> int:
    """Run ``vllm-mmout submit`` with its parsed arguments, and return the exit status."""
    if options.each_day and options.resume is None:
        options.mosaic = options.mosaic or "newest"
    fields = _request_fields(options)
    _check_arguments(options, fields)
    target = None if options.out is None else DownloadTarget.of(options.out)
    output_format = options.output_format
    if target is not None and options.resume is None:
        output_format = target.output_format(output_format)
        if options.each_day:
            target.check_days()
    if output_format is not None:
        fields["output_format"] = output_format
    form = None if options.resume is not None else _form(options.inputs, fields)
    key = api_key(options.api_key, os.environ)
    fetching = FetchOptions.from_environment({**os.environ, RETRIES: os.environ.get(RETRIES) or _RETRIES})
    with contextlib.closing(Session(server_address(options.server), key, fetching, _say)) as session:
        if form is None:
            job = get_job(session, options.resume)
        else:
            check_server(session)
            with _bar("Upload", form.size) as bar:
                job = submit(session, form, _position_setter(bar))
        if options.no_wait:
            print(job.id)
        else:
            _finish(session, job, target, options)
    return 0


def server_address(text: str) -> str:
    """Check the argument ``--server``. Return the server's base URL without ``/v1`` and without a final slash."""
    message = f"--server {without_secrets(text)} must be the address of a server, for example http://localhost:8000"
    try:
        parts = urlsplit(text.strip())
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        raise OptionError(message, param="server") from None
    if not valid or parts.query or parts.fragment:
        raise OptionError(message, param="server")
    if parts.username is not None:
        raise OptionError(
            f"--server {without_secrets(text)} contains a user or a password; give the server's key with --api-key",
            param="server",
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def api_key(option: str | None, environment: Mapping[str, str]) -> str | None:
    """Return the server's API key: ``option``, or else the first environment variable of `KEYS` that is set."""
    key = next((key for key in (option, *map(environment.get, KEYS)) if key), None)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise OptionError("the API key has characters that cannot be sent; check its quoting", param="api_key")
    return key


def _finish(session: Session, job: Job, target: DownloadTarget | None, options: argparse.Namespace) -> None:
    """Wait for a job, save its results, and delete the job on the server unless ``--keep`` is given."""
    # The command that is printed does not contain the API key, which would stay visible in the terminal.
    resuming = f"vllm-mmout submit --resume {job.id} --server {options.server} -o {options.out}"
    try:
        if options.resume is None:
            _say(f"job {job.id}; to resume it later: {resuming}")
        with _bar("Tiles", unit="tile") as bar:
            job = wait(session, job, lambda job: _show(bar, job))
    except KeyboardInterrupt:
        if not options.keep:
            _cancel(session, job.id)
        raise
    if target is None:  # cannot happen: `_check_arguments` requires -o
        return
    try:
        files = _fetch(session, job, target, file_stem(options.inputs[0]) if options.inputs else file_stem(job.name))
    except KeyboardInterrupt:
        _say(f"the part that was downloaded is kept; resume with {resuming}")
        raise
    for text in job.warnings:
        _say(f"warning: {text}")
    for file in files:
        print(file)
    if not options.keep:
        try:
            remove(session, job.id)
        except ServerError as error:
            _say(f"the result is saved, but the job {job.id} could not be deleted on the server: {error}")


def _fetch(session: Session, job: Job, target: DownloadTarget, name: str) -> list[Path]:
    """Download a job's results to ``target``. Return the paths of the files.

    If the target is a folder, file names begin with ``name``, or with the day if the job makes a map of each day.
    """
    files = target.files(name, job.outputs)
    for file, output in zip(files, job.outputs, strict=True):
        path = result_path(job.id, output)
        with _bar("Download", output.bytes) as bar, PartFile(file, f"{session.server}{path}") as part:
            download(session, path, output.bytes, part, _position_setter(bar))
            place(part.path, file, output)
            part.forget()
    return files


def _cancel(session: Session, job: str) -> None:
    try:
        remove(session, job)
    except ServerError as error:
        _say(f"the job {job} could not be cancelled: {error}")
    else:
        _say(f"the job {job} is cancelled")


def _check_arguments(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Raise an OptionError if command-line arguments are missing or exclude each other."""
    if options.resume is None:
        if not options.inputs:
            raise OptionError("name a FILE to send, or a job with --resume ID")
        if options.out is None and not options.no_wait:
            raise OptionError("-o is missing; name the file to write, or leave the result on the server with --no-wait")
        return
    if not _ID.fullmatch(options.resume):
        raise OptionError(f"--resume {options.resume!r} is not a job id such as scene_...")
    flags = [flag(name) for name in fields] + ["--output-format"] * (options.output_format is not None)
    if options.inputs or flags:
        arguments = ", ".join([*options.inputs, *flags])
        raise OptionError(f"--resume continues a job as it was sent; leave {arguments} out")
    if options.no_wait:
        raise OptionError("--resume waits for a job, --no-wait does not; give only one of the two")
    if options.out is None:
        raise OptionError("-o is missing; name the file to write")


def _request_fields(options: argparse.Namespace) -> dict[str, str]:
    """Return the form fields of the request as text: the model, and the options that differ from their defaults."""
    values = {name: getattr(options, name) for name in OPTIONS}
    defaults = msgspec.structs.asdict(OutputParams())
    OutputParams(**values)  # raises OptionError for invalid values
    fields = {name: _text(value) for name, value in values.items() if value != defaults[name]}
    return fields | ({} if options.model is None else {"model": options.model})


def _text(value: Any) -> str:
    """Return an option's value as the text of a form field."""
    if isinstance(value, tuple):
        texts = [_text(item) for item in value]
        return msgspec.json.encode(value).decode() if any("," in text for text in texts) else ",".join(texts)
    return repr(value) if isinstance(value, float) else str(value)


def _form(inputs: Sequence[str], fields: dict[str, str]) -> MultipartForm:
    urls = [name for name in inputs if _ADDRESS.match(name) or in_bucket(name)]
    files = [Path(name) for name in inputs if name not in urls]
    if urls and files:
        raise OptionError(f"{urls[0][:100]} is a URL and {files[0]} a file; send only URLs, or only files")
    return MultipartForm([*(("image", text) for text in urls), *fields.items()], [("image", file) for file in files])


def _bar(label: str, total: int | None = None, unit: str = "B") -> tqdm[Any]:
    """Return a progress bar, which is disabled if standard error is not a terminal."""
    return tqdm(
        total=total,
        desc=label,
        unit=unit,
        unit_scale=unit == "B",
        unit_divisor=1024,
        dynamic_ncols=True,
        disable=not sys.stderr.isatty(),
    )


def _position_setter(bar: tqdm[Any]) -> Callable[[int], None]:
    """Return a function that sets the position of a progress bar. The new position may be lower than the old one."""
    return lambda done: bar.update(done - bar.n) and None


def _show(bar: tqdm[Any], job: Job) -> None:
    bar.set_description_str("Queued" if job.status == "queued" else "Tiles", refresh=False)
    if job.tiles is not None:
        bar.total = job.tiles.total
        bar.update(job.tiles.done - bar.n)
    bar.refresh()


def _say(line: str) -> None:
    """Write a line to standard error, above a progress bar if one is shown."""
    tqdm.write(line, file=sys.stderr)
