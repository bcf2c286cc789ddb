"""The files that one input consists of: what its result is called, and what it must not be written over."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_mmout.models.input_forms import are_named_files, as_folder, as_local_path, is_open_file
from vllm_mmout.raster.gdal.names import is_gdal_name
from vllm_mmout.raster.gdal.opened import files_of
from vllm_mmout.raster.remote.address import is_address, stem
from vllm_mmout.raster.stack.folder import folders_in, rasters_in, rasters_of

NAMELESS = "output"
"""What the result of an input without a name is called."""


def name_of(data: Any) -> str:
    """What a result is called: as its input's folder or file, of several files the first."""
    folder = as_folder(data)
    if folder is not None:
        return folder.resolve().name or NAMELESS
    if isinstance(data, str | os.PathLike):
        return stem(data) or NAMELESS
    parts = _parts(data)
    return name_of(parts[0]) if parts else NAMELESS


def paths_of(data: Any) -> list[Path]:
    """All files on this machine that an input is read from.

    Raises:
        InputError: a folder cannot be read.

    """
    folder = as_folder(data)
    if folder is not None:
        inside = [*rasters_of(folder), *(path for place in folders_in(folder) for path in rasters_in(place))]
        return [file for path in inside for file in paths_of(path)]
    if isinstance(data, str | os.PathLike):
        if is_address(data):
            return []
        if is_gdal_name(str(data)):
            return files_of(str(data))
        path = as_local_path(data)
        return [path, *files_of(str(path))] if path.suffix.lower() == ".vrt" else [path]
    if isinstance(data, Mapping) and isinstance(data.get("multi_modal_data"), Mapping):
        data = list(data["multi_modal_data"].values())
    return [path for part in _parts(data) for path in paths_of(part)]


def read_once(data: Any) -> bool:
    """Whether an input can be read a single time, as it has a file that the caller opened."""
    parts = data.values() if isinstance(data, Mapping) else _parts(data)  # pictures may stand among the files
    return is_open_file(data) or any(map(read_once, parts))


def _parts(data: Any) -> list[Any]:
    """What a list, or a mapping of band names to files, holds."""
    if are_named_files(data):
        return list(data.values())
    return list(data) if isinstance(data, list | tuple) else []
