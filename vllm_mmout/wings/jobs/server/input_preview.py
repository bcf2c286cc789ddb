"""Reduce an input to a small picture, which the web page shows before the model runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Layer, OpenStack, Window, can_hold, is_tiff, read_directories
from vllm_mmout.models.inputs.band_choice import BandChoice, BandList
from vllm_mmout.models.inputs.input_forms import is_open_file
from vllm_mmout.models.inputs.open_input import chosen_layers, unwrapped
from vllm_mmout.outputs.band_pictures import bands_to_draw
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from typing import BinaryIO

    from numpy.typing import NDArray

    from vllm_mmout.geo import OpenRaster
    from vllm_mmout.models.inputs.model_inputs import ModelInputs

LONGER: Final = 768
"""Maximum length of the preview's longer side, in pixels."""
MOST_BANDS: Final = 32
"""Maximum number of bands in a preview. If the input has more bands, the preview has only the first of them."""
_AT_ONCE: Final = 16 << 20
"""Maximum size in bytes of the pixels that are read at once. A larger tile or strip of the file is decoded whole."""
_SAME_DTYPES: Final = frozenset({"uint8", "int16", "uint16", "int32", "uint32", "float32"})
"""Input dtypes that a preview keeps. Pixels of any other dtype are converted."""
_CONVERTED_DTYPES: Final = {"bool": "uint8", "int8": "int16"}
"""Dict from input dtype to preview dtype.

Pixels whose dtype is neither a key here nor in `_SAME_DTYPES`, such as int64, are converted to float32."""
_PHOTOMETRIC: Final = 262
"""Number (tag id) of the TIFF tag PhotometricInterpretation."""
_RGB: Final = (2,)
"""Value of the tag PhotometricInterpretation in a file with red, green and blue bands."""


class PreviewSize(msgspec.Struct, frozen=True):
    """Width and height of a preview in pixels."""

    width: int
    height: int


class InputPreview(msgspec.Struct, frozen=True, tag_field="object", tag="scene.preview"):
    """Bands of an input at reduced size, for display on the web page. In JSON, ``data`` is base64."""

    width: int
    """Width of the full input in pixels."""
    height: int
    """Height of the full input in pixels."""
    shown: PreviewSize
    """Size of the preview."""
    dtype: str
    """Name of the input's dtype, such as "uint16"."""
    bands: tuple[str, ...]
    """Names of the bands in the preview, "" for a band without a name."""
    nodata: float | None
    """Value in ``data`` that marks pixels without data. NaN and infinite values mark such pixels too."""
    usual: tuple[int, ...]
    """Numbers (from 1) of the bands that the web page draws initially. Three bands are drawn as red, green and blue. A
    single band is drawn in grey."""
    data_dtype: str
    """Name of the dtype of ``data``, such as "uint8"."""
    data: bytes
    """Pixels of the preview [bands, height, width] as little-endian bytes."""


def input_preview(opened: Any, inputs: ModelInputs | None = None) -> InputPreview:
    """Reduce an input to a preview for the web page. The call blocks while the input is read.

    Each pixel of the preview is the input pixel at the centre of the area that it covers. Only tiles and strips of the
    file that contain such a pixel are read, each once, or at most twice if the input has files with different tiles.
    Memory use is the preview plus some tens of MiB, or plus one tile or strip of the file if that is larger.

    Args:
        opened: the input, as open files.
        inputs: the model's inputs, whose band names help to choose the colours, or None.

    Raises:
        InputError: the input has no bands, no pixels, or pixels of a dtype that cannot be shown.

    """
    data = unwrapped(opened)
    coloured = is_open_file(data) and _is_rgb(data)
    with ExitStack() as stack:
        mapper = None if inputs is None else inputs.rasters
        layers = _layers(data, stack, picture=mapper is not None and mapper.one_for_all)
        raster, places = layers[0].raster, [layer.place + 1 for layer in layers]
        if len({id(layer.raster) for layer in layers}) > 1:
            raster = stack.enter_context(OpenStack(layers, f"the input of {len(layers)} bands"))
            places = list(range(1, len(layers) + 1))
        if 0 in raster.size:
            raise InputError(f"{raster.name} has no pixels: {raster.size[0]} x {raster.size[1]}; send another file")
        dtype = _preview_dtype(raster)
        size, longer = raster.size, max(raster.size)
        if longer > LONGER:
            size = max(1, round(size[0] * LONGER / longer)), max(1, round(size[1] * LONGER / longer))
        names = [layer.name or "" for layer in layers]
        return InputPreview(
            width=raster.size[1],
            height=raster.size[0],
            shown=PreviewSize(size[1], size[0]),
            dtype=raster.dtype.name,
            bands=tuple(names[:MOST_BANDS]),
            nodata=_nodata(raster, dtype),
            usual=_bands_to_draw(raster, names, inputs, coloured=coloured),
            data_dtype=dtype.name,
            data=_reduced(raster, places[:MOST_BANDS], size, dtype).tobytes(),
        )


class _EveryBand(BandChoice):
    """Band selection that selects all bands of a file, in the file's order."""

    def places(self, there: BandList, dates: int = 1) -> list[int]:
        del dates
        return list(range(len(there.bands)))


def _layers(data: Any, stack: ExitStack, *, picture: bool) -> list[Layer]:
    """Return all bands of an input, one `Layer` for each band. Bands of the same date are adjacent.

    With ``picture``, a picture is turned and its colours are converted as an image viewer does.
    """
    data = unwrapped(data)
    if isinstance(data, list | tuple) and any(isinstance(part, list | tuple | Mapping) for part in data):
        return [layer for part in data for layer in _layers(part, stack, picture=picture)]
    layers = chosen_layers(data, _EveryBand("page", (), OutputParams(), one_for_all=picture), stack)
    if not layers:
        raise InputError("the input has no bands; send at least one file")
    return layers


def _is_rgb(file: BinaryIO) -> bool:
    """Return whether a file is a TIFF whose tags declare red, green and blue bands. Rewind the file."""
    try:
        if not is_tiff(file.read(4)):
            return False
        tag = read_directories(file, getattr(file, "name", "the file"))[0].tag(file, _PHOTOMETRIC)
    finally:
        file.seek(0)
    return tag is not None and tag.value == _RGB


def _bands_to_draw(
    raster: OpenRaster, names: Sequence[str], inputs: ModelInputs | None, *, coloured: bool
) -> tuple[int, ...]:
    """Return the numbers (from 1) of the bands to draw. The bands are chosen by their names.

    If the input's bands are unnamed, and their number is that of the model's bands, the model's band names are used.
    """
    colours = len(names) - (raster.alpha is not None)
    mapper = None if inputs is None else inputs.rasters
    if mapper is not None and not any(names) and colours == len(mapper.bands) * (mapper.num_frames or 1):
        names = mapper.bands
    else:
        names = names[:colours] if raster.alpha == len(names) else names
    return bands_to_draw(names[:MOST_BANDS], coloured=coloured and colours >= len("rgb"))


def _preview_dtype(raster: OpenRaster) -> np.dtype[Any]:
    """Return the dtype of a raster's preview, in little-endian byte order.

    JavaScript's typed arrays support all dtypes that can be returned.
    """
    name, kind = raster.dtype.name, raster.dtype.kind
    if kind not in "biuf":
        raise InputError(
            f"{raster.name} has pixels of {name}, which cannot be shown; convert them to 32-bit integers or floats"
        )
    return np.dtype(name if name in _SAME_DTYPES else _CONVERTED_DTYPES.get(name, "float32")).newbyteorder("<")


def _nodata(raster: OpenRaster, dtype: np.dtype[Any]) -> float | None:
    """Convert a raster's nodata value to the preview's dtype. Return None if the value is missing or not finite."""
    if raster.nodata is None or not can_hold(raster.dtype, raster.nodata):
        return None
    with np.errstate(over="ignore"):  # an overflow gives infinity
        value: float = np.array(raster.nodata).astype(raster.dtype).astype(dtype).item()
    return value if math.isfinite(value) else None


class _AxisRange(NamedTuple):
    """Range of raster pixels to read along one axis, and the matching range of preview pixels."""

    shown: slice
    """Range of preview pixels."""
    first: int
    """Index, along the axis, of the first raster pixel to read."""
    length: int
    """Number of raster pixels to read along the axis."""
    indices: NDArray[np.intp]
    """Index of the raster pixel that each preview pixel shows, counted from the raster pixel ``first``."""


def _reduced(raster: OpenRaster, bands: Sequence[int], size: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read the given bands (numbered from 1), reduced to ``size``. Return an array [bands, height, width]."""
    reduced = np.empty((len(bands), *size), dtype)
    rows, cols = ((2 * np.arange(new) + 1) * old // (2 * new) for old, new in zip(raster.size, size, strict=True))
    height, width = raster.block
    pixel = len(bands) * raster.dtype.itemsize
    with np.errstate(over="ignore"):  # large float64 values become infinity
        for across in _axis_ranges(cols, width, max(width, _AT_ONCE // (pixel * height)), apart=False):
            downs = _axis_ranges(rows, height, max(1, _AT_ONCE // (pixel * across.length)), apart=True)
            windows = [Window(down.first, across.first, down.length, across.length) for down in downs]
            with closing(raster.windows(windows, bands)) as parts:
                for down, part in zip(downs, parts, strict=True):
                    reduced[:, down.shown, across.shown] = part.array[:, down.indices][:, :, across.indices]
    return reduced


def _axis_ranges(shown_pixels: NDArray[np.intp], block_length: int, most: int, *, apart: bool) -> list[_AxisRange]:
    """Split an axis of a raster into ranges. A preview reads the ranges one after another to save memory.

    Args:
        shown_pixels: for each preview pixel, the index of its raster pixel.
        block_length: length of the file's tiles or strips along the axis, in pixels.
        most: limit of a range's length, in pixels. A range has several whole blocks, or a part of a longer block.
        apart: end a range before a block without a preview pixel, so that the block is not read. If this were done
            along both axes, files with small blocks would be read in a window for each pixel.

    """
    blocks = shown_pixels // block_length
    ends = np.diff(blocks // max(1, most // block_length)) != 0
    if apart:
        ends |= np.diff(blocks) > 1
    if most < block_length:
        ends |= np.diff(shown_pixels // most) != 0
    edges = [0, *(np.flatnonzero(ends) + 1).tolist(), len(shown_pixels)]
    return [
        _AxisRange(
            slice(start, end),
            first := int(shown_pixels[start]),
            int(shown_pixels[end - 1]) + 1 - first,
            shown_pixels[start:end] - first,
        )
        for start, end in pairwise(edges)
    ]
