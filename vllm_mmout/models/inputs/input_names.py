"""What an input is called, and the files that it is read from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_mmout.geo import file_stem, folders_in, gdal_files, is_address, is_gdal_name, rasters_in, rasters_of
from vllm_mmout.models.inputs.open_input import as_folder, as_local_path, parts_of

NAMELESS = "output"
"""What the result of an input without a name is called."""


def name_of(data: Any) -> str:
    """What a result is called: as its input's folder or file, of several files the first."""
    if (folder := as_folder(data)) is not None:
        return folder.resolve().name or NAMELESS
    if isinstance(data, str | os.PathLike):
        return file_stem(data) or NAMELESS
    parts = parts_of(data)
    return name_of(parts[0]) if parts else NAMELESS


def paths_of(data: Any) -> list[Path]:
    """All files on this machine that an input is read from."""
    if (folder := as_folder(data)) is not None:
        inside = [*rasters_of(folder), *(path for place in folders_in(folder) for path in rasters_in(place))]
        return [file for path in inside for file in paths_of(path)]
    if isinstance(data, str | os.PathLike):
        if is_address(data):
            return []
        if is_gdal_name(str(data)):
            return gdal_files(str(data))
        path = as_local_path(data)
        return [path, *gdal_files(str(path))] if path.suffix.lower() == ".vrt" else [path]
    if isinstance(data, Mapping) and isinstance(data.get("multi_modal_data"), Mapping):
        data = list(data["multi_modal_data"].values())
    return [path for part in parts_of(data) for path in paths_of(part)]
