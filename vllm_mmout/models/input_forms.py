"""The forms in which a user hands a picture or raster over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.raster.opened import OpenRaster, open_raster
from vllm_mmout.raster.raster import Raster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vllm_mmout.params import OutputParams


def opened_raster(data: Any) -> OpenRaster:
    """Open any form of a picture or raster; of a file nothing but its header is read.

    Raises:
        InputError: it is no such form, or cannot be read.

    """
    if isinstance(data, str | Path):
        return open_raster(_local_path(str(data)))
    if isinstance(data, bytes | bytearray | memoryview):
        return open_raster(bytes(data))
    if hasattr(data, "read") and not hasattr(data, "getbands"):
        return open_raster(data)
    array = _picture_array(data) if hasattr(data, "getbands") else _plain_array(data)
    if array.ndim != 3:
        raise InputError(
            f"an array must be [bands, height, width], got shape {list(array.shape)}; a picture [height, width, 3] goes"
            " through np.moveaxis(picture, -1, 0)"
        )
    return open_raster(Raster(array=array))


def as_raster(data: Any) -> Raster:
    """Read any form of a picture or raster whole.

    Raises:
        InputError: it is no such form, or cannot be read.

    """
    with opened_raster(data) as raster:
        return raster.read()


def chosen_bands(raster: Raster, params: OutputParams) -> Raster:
    """The bands that the request names, all but alpha where it names none.

    Raises:
        InputError: a band is not there.

    """
    chosen = params.bands if params.indices is None else tuple(index + 1 for index in params.indices)
    return raster.without_alpha() if chosen is None else raster.select(chosen)


def observed(
    raster: Raster, array: NDArray[Any], params: OutputParams
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """The array with 0 where nothing was observed, and where that is not so; None: everywhere.

    Raises:
        InputError: no pixel holds an observation.

    """
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
    parts = urlsplit(text)
    if parts.scheme == "file":
        return unquote(parts.path)
    if parts.scheme in ("http", "https"):
        raise InputError(f"{text}: inputs are not fetched over {parts.scheme}; download the file and give its path")
    return text


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
