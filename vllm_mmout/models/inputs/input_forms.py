"""The forms in which a user hands a picture or raster over."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.file_names import folders_in, is_address, rasters_in, rasters_of, stem
from vllm_mmout.geo.raster.formats import is_gdal_name
from vllm_mmout.geo.raster.gdal import files_of
from vllm_mmout.geo.raster.opened import OpenRaster, open_raster
from vllm_mmout.geo.raster.raster import Raster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, slots=True)
class Raw:
    """What the input mapper of an author gets as it is: a table too, whose keys are no keywords of ``forward``."""

    value: Any


def opened_raster(data: Any) -> OpenRaster:
    """Open any form of a picture or raster; of a file nothing but its header is read."""
    if isinstance(data, str | Path):
        return open_raster(_local_path(str(data)))
    if isinstance(data, bytes | bytearray | memoryview):
        return open_raster(bytes(data))
    if is_open_file(data):
        return open_raster(data)
    array = _picture_array(data) if hasattr(data, "getbands") else _plain_array(data)
    if array.ndim != 3:
        raise InputError(
            f"an array must be [bands, height, width], got shape {list(array.shape)}; a picture [height, width, 3] goes"
            " through np.moveaxis(picture, -1, 0)"
        )
    return open_raster(Raster(array=array))


def as_folder(data: Any) -> Path | None:
    """The folder that an input names; None for any other form."""
    if not isinstance(data, str | Path):
        return None
    path = as_local_path(data)
    try:
        return path if path.is_dir() else None
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def as_local_path(data: str | os.PathLike[str]) -> Path:
    """The path that a path or ``file://`` URL names."""
    return Path(_local_path(os.fspath(data)))


def is_open_file(data: Any) -> bool:
    """Whether an input is a file object; a PIL image is none."""
    return hasattr(data, "read") and not hasattr(data, "getbands")


def are_named_files(data: Any) -> bool:
    """Whether an input is a mapping of band names to files (paths, URLs, bytes, open files), not tensors by keyword."""
    if not isinstance(data, Mapping) or not data:
        return False
    return all(
        isinstance(value, str | os.PathLike | bytes | bytearray | memoryview) or is_open_file(value)
        for value in data.values()
    )


def as_raster(data: Any) -> Raster:
    """Read any form of a picture or raster whole."""
    with opened_raster(data) as raster:
        return raster.read()


def chosen_bands(raster: Raster, params: OutputParams) -> Raster:
    """The bands that the request names, all but alpha where it names none."""
    chosen = params.bands if params.indices is None else tuple(index + 1 for index in params.indices)
    if chosen is None:
        return raster.without_alpha()
    try:
        return raster.select(chosen)
    except InputError as error:
        raise InputError(str(error), param="bands" if params.indices is None else "indices") from None


def observed(
    raster: Raster, array: NDArray[Any], params: OutputParams
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """The array with 0 where nothing was observed, and where that is not so; None: everywhere."""
    valid = raster.valid(params.nodata)
    if valid is None or valid.all():
        return array, None
    if not valid.any():
        raise nothing_observed(raster.nodata)
    return np.where(valid, array, np.zeros((), array.dtype)), valid


def nothing_observed(nodata: float | None) -> InputError:
    """The error of an input without a pixel to look at."""
    return InputError(
        f"no pixel of the input holds an observation: all are NaN or nodata ({nodata}); choose other bands=[...] or say"
        " nodata=..."
    )


def _local_path(text: str) -> str:
    """The path in a file:// address; any other text as it is."""
    if not text.lower().startswith("file:"):
        return text  # of others urlsplit refuses some, and shows what they hold
    try:
        return unquote(urlsplit(text).path)
    except ValueError as error:
        raise InputError(f"{text!r} is no address of a file ({error}); it must be file:///path") from None


def _picture_array(picture: Any) -> NDArray[Any]:
    """A PIL image as [bands, height, width]: palettes become colours, alpha is left out."""
    if picture.mode in ("P", "PA", "CMYK", "YCbCr", "LAB", "HSV", "RGBA", "RGBX"):
        picture = picture.convert("RGB")
    elif picture.mode in ("1", "LA", "La"):
        picture = picture.convert("L")
    array: NDArray[Any] = np.asarray(picture)
    return array[np.newaxis] if array.ndim == 2 else np.moveaxis(array, -1, 0)


def _plain_array(data: Any) -> NDArray[Any]:
    if isinstance(data, np.ndarray):
        return data
    if hasattr(data, "detach") and hasattr(data, "cpu"):
        tensor = data.detach().cpu()
        array: NDArray[Any] = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
        return array
    raise InputError(
        "an input must be a path, bytes, a PIL image, an array or tensor [bands, height, width], or vLLM's prompt dict,"
        f" got {type(data).__name__}"
    )


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
    """All files on this machine that an input is read from."""
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
    if are_named_files(data):
        return list(data.values())
    return list(data) if isinstance(data, list | tuple) else []
