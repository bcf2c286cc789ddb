"""Open one picture or raster in any form: a path, bytes, an open file, a PIL image, an array or a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import OpenArray, OpenRaster, Raster, as_seen, open_raster, picture_raster
from vllm_mmout.models.inputs.input_forms import is_open_file, native, without_file_scheme


def opened_picture(data: Any) -> OpenRaster:
    """Open a picture or raster as a viewer shows it: turned upright, with the colours of its palette."""
    return as_seen(opened_raster(data))


def opened_raster(data: Any) -> OpenRaster:
    """Open a picture or raster given as path, bytes, open file, PIL image, array or tensor."""
    if isinstance(data, str | Path):
        if not str(data):
            raise InputError("the path of the input is empty; name a file")
        return open_raster(without_file_scheme(str(data)))
    if isinstance(data, bytes | bytearray | memoryview):
        return open_raster(bytes(data))
    if is_open_file(data):
        return open_raster(data)
    if hasattr(data, "getbands"):
        return open_raster(picture_raster(data))
    array = native(_plain_array(data))
    if array.ndim != 3:
        raise InputError(
            f"an array must be [bands, height, width], got shape {list(array.shape)}; a picture [height, width, 3] goes"
            " through np.moveaxis(picture, -1, 0), a grey one [height, width] through picture[None]"
        )
    if isinstance(array, np.ma.MaskedArray):
        raster = Raster(array.filled(0))
        return OpenArray(
            raster, f"<raster of {raster.height} x {raster.width} pixels>", ~np.broadcast_to(array.mask, array.shape)
        )
    return open_raster(Raster(array=array))


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
