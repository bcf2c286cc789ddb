"""Where the IO Processor plugin ``mmout`` writes results of a caller on its own machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.field_types import shown

_CONFIG: Final = "TERRATORCH_SEGMENTATION_IO_PROCESSOR_CONFIG"
"""Variable of the environment in which TerraTorch's plugin finds its ``output_path``, as JSON."""


class _PluginConfig(msgspec.Struct, frozen=True):
    """What TerraTorch's plugin reads of its variable."""

    output_path: str | None = None


def out_path(fields: Mapping[str, Any], out_data_format: str, *, local: bool) -> str | None:
    """The path that a request names for its result; None where it names none, or wants none written.

    Args:
        fields: what stands in ``data``.
        out_data_format: "path" or "b64_json".
        local: whether it comes from a caller on this machine.

    Raises:
        ApiError: it is no path, or the caller may not name one (400).

    """
    if out_data_format == "path" and not local:
        raise ApiError(
            400,
            "out_data_format 'path' is for Python on the machine itself: a client cannot choose where the server"
            " writes; leave it out for base64, or send the scene as a job to /v1/scenes and fetch its file",
            param="out_data_format",
        )
    path = fields.get("out_path")
    if path is not None and not isinstance(path, str | Path):
        raise ApiError(400, f"out_path must be a folder or a file, got {shown(path)}", param="out_path")
    return None if path is None or out_data_format != "path" else str(path)


def usual_folder() -> Path:
    """Where TerraTorch's plugin writes what has no path: where its configuration says, else the user's home.

    Raises:
        ApiError: the configuration is malformed, or there is no such folder (400).

    """
    try:
        said = msgspec.json.decode(os.environ.get(_CONFIG) or "{}", type=_PluginConfig).output_path
    except msgspec.MsgspecError as error:
        raise ApiError(
            400, f'{_CONFIG} must be such as {{"output_path": "/results"}}: {error}; or give out_path', param="out_path"
        ) from None
    folder = Path(said) if said else Path.home()
    if not folder.is_dir():
        raise ApiError(
            400, f"out_path is not given, and {folder}, which {_CONFIG} names, is no folder; make it", param="out_path"
        )
    return folder


def new_file(folder: Path, formats: Mapping[str, str], wanted: str) -> Path:
    """A file that is not there yet, with the suffix of a format.

    Args:
        folder: where it is to be.
        formats: suffix -> format.
        wanted: one of these formats.

    """
    suffix = next(suffix for suffix, known in formats.items() if known == wanted)
    return folder / f"{uuid4()}{suffix}"
