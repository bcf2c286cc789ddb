"""Recognize the form of an input (path, folder, open file, dict of files), and list its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import (
    file_stem,
    folders_in,
    gdal_files,
    in_bucket,
    is_address,
    is_gdal_name,
    is_zarr,
    place_of,
    rasters_of,
)
from vllm_mmout.models.inputs.catalogued import CataloguedInput, catalogued

if TYPE_CHECKING:
    from vllm_mmout.geo import BucketPath

NAMELESS = "output"
"""Name of the output files of an unnamed input."""


def name_of(data: Any) -> str:
    """Return the name for an input's output files: the name of its folder, its file, or its first file."""
    if (folder := as_folder(data)) is not None:
        return folder.resolve().name or NAMELESS
    if isinstance(data, str | os.PathLike):
        return file_stem(data) or NAMELESS
    try:
        record = data if isinstance(data, CataloguedInput) else catalogued(data)
    except InputError:  # raised again when the input is read
        return NAMELESS
    if record is not None:
        return record.name
    parts = parts_of(data)
    return name_of(parts[0]) if parts else NAMELESS


def paths_of(data: Any) -> list[Path | BucketPath]:
    """Return the local files and bucket objects that an input is read from."""
    if (folder := as_folder(data)) is not None:
        inside = [*rasters_of(folder), *(path for place in folders_in(folder) for path in rasters_of(place))]
        return [file for path in inside for file in paths_of(path)]
    if isinstance(data, str | os.PathLike):
        if is_address(data):
            return []
        if in_bucket(data):
            return [place_of(str(data))]
        if is_gdal_name(str(data)):
            return [*gdal_files(str(data))]
        path = as_local_path(data)
        return [path, *gdal_files(str(path))] if path.suffix.lower() == ".vrt" else [path]
    if isinstance(data, Mapping) and isinstance(data.get("multi_modal_data"), Mapping):
        data = list(data["multi_modal_data"].values())
    return [path for part in parts_of(data) for path in paths_of(part)]


def as_folder(data: Any) -> Path | None:
    """Return the path if ``data`` is a folder of files. Return None for any other input, including Zarr stores."""
    if not isinstance(data, str | Path):
        return None
    path = as_local_path(data)
    try:
        return path if path.is_dir() and not is_zarr(path) else None
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def as_local_path(data: str | os.PathLike[str]) -> Path:
    """Return the local path for a path or a ``file://`` URL."""
    return Path(without_file_scheme(os.fspath(data)))


def is_open_file(data: Any) -> bool:
    """Return whether an input is an open file. PIL images do not count."""
    return hasattr(data, "read") and not hasattr(data, "getbands")


def are_named_files(data: Any) -> bool:
    """Return whether an input is a dict that maps names, such as band names, to files. Dicts of tensors give False."""
    if not isinstance(data, Mapping) or not data:
        return False
    return all(
        isinstance(value, str | os.PathLike | bytes | bytearray | memoryview) or is_open_file(value)
        for value in data.values()
    )


def read_once(data: Any) -> bool:
    """Return whether an input can be read only once, because it contains an open file of the caller."""
    parts = data.values() if isinstance(data, Mapping) else parts_of(data)  # a mapping may also contain pictures
    return is_open_file(data) or any(map(read_once, parts))


def is_named(data: Any) -> bool:
    """Return whether an input consists of paths and addresses only. Such an input can be read again later."""
    return isinstance(data, str | os.PathLike) or ((parts := parts_of(data)) != [] and all(map(is_named, parts)))


def parts_of(data: Any) -> list[Any]:
    """Return the parts of an input: the items of a list, the files of a dict, or the files of a catalogue record.

    A catalogue record is, for example, a STAC item. Any other input is a single file or array, for which the result is
    an empty list.
    """
    if isinstance(data, CataloguedInput):
        return [file.address for file in data.files]
    if are_named_files(data):
        return list(data.values())
    return list(data) if isinstance(data, list | tuple) else []


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in this machine's byte order, as torch requires. Native arrays are not copied."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def without_file_scheme(text: str) -> str:
    """Return the path in a ``file://`` URL. Return any other text unchanged."""
    if not text.lower().startswith("file:"):
        return text  # urlsplit raises for some other addresses, and its message would show their secrets
    try:
        return unquote(urlsplit(text).path)
    except ValueError as error:
        raise InputError(f"{text!r} is not the address of a file ({error}); it must be file:///path") from None
