"""InputPreview: what a page shows of an input before a model has seen it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo import Layer, OpenStack, Window, can_hold, is_tiff, meanings, possible_sensors, read_directories
from vllm_mmout.models.inputs.band_choice import BandChoice, BandList
from vllm_mmout.models.inputs.input_forms import is_open_file
from vllm_mmout.models.inputs.open_input import chosen_layers, unwrapped
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from typing import BinaryIO

    from numpy.typing import NDArray

    from vllm_mmout.geo import OpenRaster
    from vllm_mmout.models.inputs.model_inputs import ModelInputs

LONGER: Final = 768
"""Pixels that the longer side has at most."""
MOST_BANDS: Final = 32
"""Bands that are shown at most, the first ones."""
_AT_ONCE: Final = 16 << 20
"""Bytes of pixels that are read at once; a single segment of the file may be larger."""
_SAME: Final = frozenset({"uint8", "int16", "uint16", "int32", "uint32", "float32"})
_OTHERS: Final = {"bool": "uint8", "int8": "int16"}
_PHOTOMETRIC: Final = 262
_RGB: Final = (2,)
_WORDS: Final = ("red", "green", "blue")
_NOT_IT: Final = {"edge", "coastal"}
"""Words that make it another colour: "red edge 1", "coastal blue"."""
_SPLIT: Final = re.compile(r"[\W_]+")


class Shown(msgspec.Struct, frozen=True):
    """The size of what is shown, in pixels."""

    width: int
    height: int


class InputPreview(msgspec.Struct, frozen=True, tag_field="object", tag="scene.preview"):
    """Some bands of an input at reduced size; msgspec writes it as JSON, ``data`` in base64."""

    width: int
    """Of the input, in its pixels."""
    height: int
    shown: Shown
    dtype: str
    """Of the input."""
    bands: tuple[str, ...]
    """What each of the shown bands is called, "" for one without a name."""
    nodata: float | None
    """Value of ``data`` that means "no observation", beside all that are not finite."""
    usual: tuple[int, ...]
    """Bands to show as red, green and blue, counted from 1, or one alone."""
    data_dtype: str
    data: bytes
    """[bands, height, width] of what is shown, little-endian."""


def input_preview(opened: Any, inputs: ModelInputs | None = None) -> InputPreview:
    """Reduce an input to what a page shows of it; blocks while it is read.

    Each pixel shown is the one in the middle of those that become one. Of the file only segments are read that have
    such a pixel, each once (of files whose segments do not share borders, at most twice). In memory is what is shown,
    and beside it some tens of MiB, or one segment of the file where that is larger.
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
        dtype = _shown_as(raster)
        size, longer = raster.size, max(raster.size)
        if longer > LONGER:
            size = max(1, round(size[0] * LONGER / longer)), max(1, round(size[1] * LONGER / longer))
        names = [layer.name or "" for layer in layers]
        return InputPreview(
            width=raster.size[1],
            height=raster.size[0],
            shown=Shown(size[1], size[0]),
            dtype=raster.dtype.name,
            bands=tuple(names[:MOST_BANDS]),
            nodata=_nodata(raster, dtype),
            usual=_usual(raster, names, inputs, coloured=coloured),
            data_dtype=dtype.name,
            data=_reduced(raster, places[:MOST_BANDS], size, dtype).tobytes(),
        )


class _EveryBand(BandChoice):
    """All bands that are there, in their order."""

    def places(self, there: BandList, dates: int = 1) -> list[int]:
        """All of them."""
        del dates
        return list(range(len(there.bands)))


def _layers(data: Any, stack: ExitStack, *, picture: bool) -> list[Layer]:
    """All bands of an input, those of several dates one date after the other; a picture's as a viewer shows it."""
    data = unwrapped(data)
    if isinstance(data, list | tuple) and any(isinstance(part, list | tuple | Mapping) for part in data):
        return [layer for part in data for layer in _layers(part, stack, picture=picture)]
    layers = chosen_layers(data, _EveryBand("page", (), OutputParams(), one_for_all=picture), stack)
    if not layers:
        raise InputError("the input has no bands; send one file at least")
    return layers


def _is_rgb(file: BinaryIO) -> bool:
    """Whether a TIFF says that its first bands are red, green and blue; the file stands at its start again."""
    try:
        if not is_tiff(file.read(4)):
            return False
        tag = read_directories(file, getattr(file, "name", "the file"))[0].tag(file, _PHOTOMETRIC)
    finally:
        file.seek(0)
    return tag is not None and tag.value == _RGB


def _usual(raster: OpenRaster, names: Sequence[str], inputs: ModelInputs | None, *, coloured: bool) -> tuple[int, ...]:
    """The bands to show, by what the input says, else by what the model takes."""
    colours = len(names) - (raster.alpha is not None)
    mapper = None if inputs is None else inputs.rasters
    if mapper is not None and not any(names) and colours == len(mapper.bands) * (mapper.num_frames or 1):
        names = mapper.bands
    else:
        names = names[:colours] if raster.alpha == len(names) else names
    return _coloured(names[:MOST_BANDS], coloured=coloured and colours >= len("rgb"))


def _shown_as(raster: OpenRaster) -> np.dtype[Any]:
    """What the pixels become: one of a few dtypes that a page's typed arrays have, little-endian."""
    name, kind = raster.dtype.name, raster.dtype.kind
    if kind not in "biuf":
        raise InputError(
            f"{raster.name} has pixels of {name}, which cannot be shown; convert them to integers or floats of 32 bits"
        )
    return np.dtype(name if name in _SAME else _OTHERS.get(name, "float32")).newbyteorder("<")


def _nodata(raster: OpenRaster, dtype: np.dtype[Any]) -> float | None:
    """The value of nodata among the pixels that are shown; None without one, and for one that is not finite."""
    if raster.nodata is None or not can_hold(raster.dtype, raster.nodata):
        return None
    with np.errstate(over="ignore"):  # it then is infinite
        value: float = np.array(raster.nodata).astype(raster.dtype).astype(dtype).item()
    return value if math.isfinite(value) else None


class _Stretch(NamedTuple):
    """Pixels that are shown, side by side along one axis, and what of the raster they are in."""

    shown: slice
    first: int
    length: int
    picked: NDArray[np.intp]
    """Where they are in it."""


def _reduced(raster: OpenRaster, bands: Sequence[int], size: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Some bands at a smaller size, [bands, height, width]."""
    made = np.empty((len(bands), *size), dtype)
    rows, cols = ((2 * np.arange(new) + 1) * old // (2 * new) for old, new in zip(raster.size, size, strict=True))
    height, width = raster.block
    pixel = len(bands) * raster.dtype.itemsize
    with np.errstate(over="ignore"):  # of float64 some become infinite
        for across in _stretches(cols, width, max(width, _AT_ONCE // (pixel * height)), apart=False):
            downs = _stretches(rows, height, max(1, _AT_ONCE // (pixel * across.length)), apart=True)
            windows = [Window(down.first, across.first, down.length, across.length) for down in downs]
            with closing(raster.windows(windows, bands)) as parts:
                for down, part in zip(downs, parts, strict=True):
                    made[:, down.shown, across.shown] = part.array[:, down.picked][:, :, across.picked]
    return made


def _stretches(middles: NDArray[np.intp], block: int, most: int, *, apart: bool) -> list[_Stretch]:
    """Cut an axis into stretches of whole segments of ``block`` pixels, or of parts of one, each of ``most`` at most.

    Where ``apart``, segments without a pixel that is shown end a stretch, so that they are not read. Along both axes
    that would make a window of each pixel where segments are small.
    """
    blocks = middles // block
    ends = np.diff(blocks // max(1, most // block)) != 0
    if apart:
        ends |= np.diff(blocks) > 1
    if most < block:
        ends |= np.diff(middles // most) != 0
    edges = [0, *(np.flatnonzero(ends) + 1).tolist(), len(middles)]
    return [
        _Stretch(
            slice(start, end),
            first := int(middles[start]),
            int(middles[end - 1]) + 1 - first,
            middles[start:end] - first,
        )
        for start, end in pairwise(edges)
    ]


def _coloured(names: Sequence[str], *, coloured: bool) -> tuple[int, ...]:
    """The bands to show, counted from 1, by their names ("": none).

    Those called red, green and blue, where all three are there: by their whole name, else by a word in it. Else the
    first three of a picture in colour, or of three bands; of more, as they are mostly stored from blue on, the third,
    second and first; of fewer the first alone.
    """
    found = [place + 1 for colour in range(3) if (place := _called(names, colour)) is not None]
    if len(found) == 3:
        return tuple(found)
    if coloured or len(names) == 3:
        return 1, 2, 3
    return (3, 2, 1) if len(names) > 3 else (1,)


def _called(names: Sequence[str], colour: int) -> int | None:
    """The first band that is called by a colour."""
    sensor = possible_sensors(names)[0]
    found = meanings([(name.strip(),) for name in names], [sensor] * len(names))
    whole = [meaning == {_WORDS[colour]} for meaning in found]
    words = [set(_SPLIT.split(name.casefold())) for name in names]
    part = [_WORDS[colour] in said and not said & _NOT_IT for said in words]
    return next((called.index(True) for called in (whole, part) if True in called), None)
