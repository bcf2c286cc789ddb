"""One input of one or several files, of one or several dates, in any form, opened as one raster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo import (
    FINER,
    RASTER_SUFFIXES,
    Layer,
    OpenArray,
    OpenRaster,
    OpenStack,
    Raster,
    band_of_file,
    folders_in,
    open_raster,
    picture_raster,
    pixel_area,
    rasters_in,
    rasters_of,
)
from vllm_mmout.models.inputs.band_choice import BandChoice, BandList, Listed
from vllm_mmout.models.inputs.input_forms import as_folder, is_open_file, without_file_scheme
from vllm_mmout.models.inputs.unpacking import unpacked_layers

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.mapper import RasterMapper
    from vllm_mmout.params import OutputParams


def opened_planes(data: Any, params: OutputParams, mapper: RasterMapper) -> tuple[OpenRaster, tuple[int, ...]]:
    """Open one input of a model; of files nothing but their headers is read.

    The caller closes the raster; with it come the numbers, from 1, of its bands that are the model's planes: the first
    band of all dates, then the second of all dates, and so on.
    """
    choice = BandChoice(mapper.model, mapper.bands, params, mapper.one_for_all)
    with ExitStack() as opened:
        layers = _planes(data, choice, mapper.num_frames, opened)
        raster, places = layers[0].raster, tuple(layer.place + 1 for layer in layers)
        if more := len({id(layer.raster) for layer in layers}) - 1:
            name = as_folder(data) or f"{PurePath(raster.name).name} and {more} more file{'s' * (more > 1)}"
            raster = OpenStack(layers, str(name), resampling=params.resampling, nodata=params.nodata)
            places = tuple(range(1, len(layers) + 1))
        opened.pop_all()  # the caller closes it
    return raster, places


def _planes(data: Any, choice: BandChoice, frames: int | None, opened: ExitStack) -> list[Layer]:
    if frames != 1:
        data = unwrapped(data)
    if frames is None:
        return chosen_layers(data, choice, opened)
    if len(getattr(data, "shape", ())) == 4:
        return _of_array(data, choice, frames, opened)
    if (dates := _dates(data, frames)) is None:
        layers = chosen_layers(data, choice, opened, frames)
        count = len(choice.wanted)
        return [layers[date * count + band] for band in range(count) for date in range(frames)]
    if len(dates) != frames:
        raise InputError(
            f"the input has {len(dates)} date{'s' * (len(dates) != 1)}, model {choice.model!r} takes {frames}; give one"
            " file, folder or list of files for each"
        )
    by_date = []
    for number, date in enumerate(dates, start=1):
        try:
            by_date.append(chosen_layers(unwrapped(date), choice, opened))
        except InputError as error:
            raise InputError(f"date {number} of {frames}: {error}", param=error.param) from error
    return [layers[band] for band in range(len(choice.wanted)) for layers in by_date]


def unwrapped(data: Any) -> Any:
    """What is in a list of one thing, and in a list of that."""
    while isinstance(data, list | tuple) and len(data) == 1:
        (data,) = data
    return data


def _dates(data: Any, frames: int) -> Sequence[Any] | None:
    if isinstance(data, list | tuple):
        return data
    if isinstance(data, Mapping):
        return [data]
    if (folder := as_folder(data)) is None:
        return None
    files = rasters_in(folder)
    if files:
        return [folder] if frames == 1 else files
    return folders_in(folder) or [folder]


def _of_array(data: Any, choice: BandChoice, frames: int, opened: ExitStack) -> list[Layer]:
    bands, dates, height, width = data.shape
    if dates != frames:
        raise InputError(f"the array has {dates} dates, model {choice.model!r} takes {frames}, of {list(data.shape)}")
    raster = opened.enter_context(opened_raster(data.reshape(bands * dates, height, width)))
    there = BandList("the array", (Listed(),) * bands, tuple(range(bands)))
    chosen = choice.places(there)
    return [Layer(raster, band * dates + date) for band in chosen for date in range(dates)]


def chosen_layers(data: Any, choice: BandChoice, opened: ExitStack, dates: int = 1) -> list[Layer]:
    """Open one input and choose its bands, in order; of several files those stay open that have one of them."""
    bands, there = _bands(data, opened)
    chosen = [bands[place] for place in choice.places(there, dates)]
    rasters = {}
    for file in dict.fromkeys(band.file for band in chosen):
        rasters[file] = opened.enter_context(opened_raster(file)) if isinstance(file, Path) else file
    for file in {band.file for band in bands} - rasters.keys():
        if not isinstance(file, Path):
            file.close()
    layers = [Layer(rasters[band.file], band.place, next(iter(band.listed.names), None)) for band in chosen]
    return unpacked_layers(layers, choice.params)


@dataclass(frozen=True, slots=True)
class _Band:
    """One band of one file."""

    file: OpenRaster | Path
    """Open, or where to open it when a band of it is chosen: of a large folder few files are needed."""
    place: int
    """Its index in the file, from 0."""
    listed: Listed
    usual: bool = True
    """Whether it is taken where nothing says which: alpha is not."""
    area: float = math.inf
    """Of a pixel, in square units of the coordinate system; infinite where nothing says it."""


def _bands(data: Any, opened: ExitStack) -> tuple[list[_Band], BandList]:
    if (folder := as_folder(data)) is not None:
        bands = _finest(_of_folder(folder))
        if len({band.file for band in bands}) == 1:
            return bands, _in_order(f"{folder} is a folder with one raster that", bands)
        return bands, BandList(f"{folder} is a folder that", tuple(band.listed for band in bands), numbered=False)
    if isinstance(data, Mapping):
        bands = [band for name, file in data.items() for band in _of_file(file, opened, name)]
        return bands, BandList("the input", tuple(band.listed for band in bands))
    if isinstance(data, list | tuple):
        if not data:
            raise InputError("the input is an empty list; give one file at least")
        bands = [band for file in data for band in _of_file(file, opened)]
        return bands, _in_order(f"the list of {len(data)} files", bands)
    raster = opened.enter_context(opened_raster(data))
    bands = [
        _Band(raster, place, Listed(tuple(filter(None, [said]))), raster.count == 1 or place + 1 != raster.alpha)
        for place, said in enumerate(raster.descriptions)
    ]
    return bands, _in_order("the input", bands)


def _in_order(what: str, bands: Sequence[_Band]) -> BandList:
    usual = tuple(place for place, band in enumerate(bands) if band.usual)
    return BandList(what, tuple(band.listed for band in bands), usual)


def _of_folder(folder: Path) -> list[_Band]:
    bands = []
    for path in rasters_of(folder):
        try:
            with opened_raster(path) as raster:
                bands += _of_raster(path, raster, _names(raster, path))
        except InputError:  # raised again where it is chosen
            bands.append(_Band(path, 0, Listed((band_of_file(path.name),), path.name)))
    if not bands:
        suffixes = ", ".join(RASTER_SUFFIXES)
        raise InputError(f"{folder} is a folder without a raster ({suffixes}); give the folder that holds the files")
    return bands


def _finest(bands: Sequence[_Band]) -> list[_Band]:
    """The bands without those that are there in smaller pixels too, as in a Sentinel-2 product."""
    areas: dict[str, float] = {}
    for band in bands:
        for name in band.listed.names[:1]:
            areas[name] = min(areas.get(name, math.inf), band.area)
    return [band for band in bands if not band.listed.names or band.area <= areas[band.listed.names[0]] / FINER]


def _of_file(data: Any, opened: ExitStack, name: Any = None) -> list[_Band]:
    raster = opened.enter_context(opened_raster(data))
    names = _names(raster, data) if name is None else (str(name),)
    return _of_raster(raster, raster, names)


def _of_raster(file: OpenRaster | Path, raster: OpenRaster, names: tuple[str, ...]) -> list[_Band]:
    """The bands, without alpha; one alone has the names, of several each has its description."""
    name = PurePath(raster.name).name
    places = [place for place in range(raster.count) if raster.count == 1 or place + 1 != raster.alpha]
    if len(places) == 1:
        return [_Band(file, places[0], Listed(names, name), area=pixel_area(raster))]
    return [_Band(file, place, Listed(tuple(filter(None, [raster.descriptions[place]])), name)) for place in places]


def _names(raster: OpenRaster, data: Any) -> tuple[str, ...]:
    """What the one band of a file may be called by: its description and what the file's name says."""
    said = next(filter(None, raster.descriptions), None)
    path = str(data) if isinstance(data, str | Path) else getattr(data, "name", None)
    file = band_of_file(path) if isinstance(path, str) else None
    return tuple(filter(None, (said, file)))


def opened_raster(data: Any) -> OpenRaster:
    """Open any form of a picture or raster; of a file nothing but its header is read."""
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
    array = _plain_array(data)
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
