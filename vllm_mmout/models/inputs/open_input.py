"""One input of one or several files, of one or several dates, opened as one raster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.file_names import SUFFIXES, band_of_file, folders_in, rasters_in, rasters_of
from vllm_mmout.geo.raster.stack.stack import FINER, Layer, OpenStack, pixel_area
from vllm_mmout.models.inputs.band_choice import BandChoice, BandList, Listed
from vllm_mmout.models.inputs.input_forms import as_folder, opened_raster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_mmout.geo.raster.windowed import OpenRaster
    from vllm_mmout.models.inputs.mapper import RasterMapper
    from vllm_mmout.params import OutputParams


def opened_planes(data: Any, params: OutputParams, mapper: RasterMapper) -> tuple[OpenRaster, tuple[int, ...]]:
    """Open one input of a model; of files nothing but their headers is read.

    Args:
        data: any form of input that `RasterMapper` takes.
        params: ``bands`` or ``indices`` say what to read; ``resampling`` and ``nodata`` how files of different pixel
            sizes are brought together.
        mapper: the model's.

    Returns:
        The raster, which the caller closes, and the numbers, from 1, of its bands that are the model's planes: the
        first band of all dates, then the second of all dates, and so on.

    Raises:
        InputError: a file cannot be opened, bands or dates are missing, or files do not lie on one grid.

    """
    choice = BandChoice(mapper.model, mapper.bands, params)
    with ExitStack() as opened:
        layers = _planes(data, choice, mapper.num_frames, opened)
        if len({id(layer.raster) for layer in layers}) == 1:
            raster, places = layers[0].raster, tuple(layer.place + 1 for layer in layers)
        else:
            name = _name(data, layers)
            raster = OpenStack(layers, name, resampling=params.resampling, nodata=params.nodata)
            places = tuple(range(1, len(layers) + 1))
        opened.pop_all()  # the caller closes it
    return raster, places


def _planes(data: Any, choice: BandChoice, frames: int | None, opened: ExitStack) -> list[Layer]:
    """The planes of an input."""
    if frames != 1:
        data = unwrapped(data)
    if frames is None:
        return chosen_layers(data, choice, opened)
    if len(getattr(data, "shape", ())) == 4:
        return _of_array(data, choice, frames, opened)
    dates = _dates(data, frames)
    if dates is None:
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
    """The dates that an input consists of; None for one raster that holds all of them."""
    if isinstance(data, list | tuple):
        return data
    if isinstance(data, Mapping):
        return [data]
    folder = as_folder(data)
    if folder is None:
        return None
    files = rasters_in(folder)
    if files:
        return [folder] if frames == 1 else files
    return folders_in(folder) or [folder]


def _of_array(data: Any, choice: BandChoice, frames: int, opened: ExitStack) -> list[Layer]:
    """The planes of an array or tensor [bands, frames, height, width]."""
    bands, dates, height, width = data.shape
    if dates != frames:
        raise InputError(f"the array has {dates} dates, model {choice.model!r} takes {frames}, of {list(data.shape)}")
    raster = opened.enter_context(opened_raster(data.reshape(bands * dates, height, width)))
    there = BandList("the array", (Listed(),) * bands, tuple(range(bands)))
    chosen = choice.places(there)
    return [Layer(raster, band * dates + date) for band in chosen for date in range(dates)]


def _name(data: Any, layers: Sequence[Layer]) -> str:
    """What to call an input of several files."""
    folder = as_folder(data)
    if folder is not None:
        return str(folder)
    others = len({id(layer.raster) for layer in layers}) - 1
    return f"{PurePath(layers[0].raster.name).name} and {others} more file{'s' * (others > 1)}"


def chosen_layers(data: Any, choice: BandChoice, opened: ExitStack, dates: int = 1) -> list[Layer]:
    """Open one input and choose its bands; of several files those stay open that have one of them.

    Args:
        data: any form of one raster; or a folder, a list of files, or a mapping of band names to files.
        choice: which bands are wanted.
        opened: closes what is open.
        dates: how many dates a raster holds; several files are one date.

    Returns:
        The bands in the order chosen.

    Raises:
        InputError: a file cannot be opened, or the bands are not there.

    """
    bands, there = _bands(data, opened)
    chosen = [bands[place] for place in choice.places(there, dates)]
    layers = [Layer(band.file.raster(), band.place, next(iter(band.listed.names), None)) for band in chosen]
    needless = {band.file for band in bands} - {band.file for band in chosen}
    for file in needless:
        file.close()
    return layers


class _File:
    """One file, open, or to be opened when a band of it is chosen."""

    def __init__(self, opened: ExitStack, raster: OpenRaster | None, again: Callable[[], OpenRaster]) -> None:
        self._opened = opened
        self._raster = raster
        self._again = again

    def raster(self) -> OpenRaster:
        """The file, open."""
        if self._raster is None:
            self._raster = self._opened.enter_context(self._again())
        return self._raster

    def close(self) -> None:
        """Let the file go; nobody has chosen a band of it."""
        if self._raster is not None:
            self._raster.close()


@dataclass(frozen=True, slots=True)
class _Band:
    """One band of one file."""

    file: _File
    place: int
    """Its index in the file, from 0."""
    listed: Listed
    usual: bool = True
    """Whether it is taken where nothing says which: alpha is not."""
    area: float = math.inf
    """Of a pixel, in square units of the coordinate system; infinite where nothing says it."""


def _bands(data: Any, opened: ExitStack) -> tuple[list[_Band], BandList]:
    """All bands of an input."""
    folder = as_folder(data)
    if folder is not None:
        bands = _finest(_of_folder(folder, opened))
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
    file = _File(opened, raster, lambda: raster)
    bands = [
        _Band(file, place, Listed(tuple(filter(None, [said]))), raster.count == 1 or place + 1 != raster.alpha)
        for place, said in enumerate(raster.descriptions)
    ]
    return bands, _in_order("the input", bands)


def _in_order(what: str, bands: Sequence[_Band]) -> BandList:
    """The list of bands that may be taken in their order."""
    usual = tuple(place for place, band in enumerate(bands) if band.usual)
    return BandList(what, tuple(band.listed for band in bands), usual)


def _of_folder(folder: Path, opened: ExitStack) -> list[_Band]:
    """Bands of the rasters in a folder. Each is closed again: of a large folder few are needed."""
    bands = []
    for path in rasters_of(folder):
        file = _File(opened, None, partial(opened_raster, path))
        try:
            with opened_raster(path) as raster:
                bands += _of_raster(file, raster, _names(raster, path))
        except InputError:  # raised again where it is chosen
            bands.append(_Band(file, 0, Listed((band_of_file(path.name),), path.name)))
    if not bands:
        suffixes = ", ".join(SUFFIXES)
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
    """Bands of one of several files, which the input calls by a name or not."""
    raster = opened.enter_context(opened_raster(data))
    names = _names(raster, data) if name is None else (str(name),)
    return _of_raster(_File(opened, raster, lambda: raster), raster, names)


def _of_raster(file: _File, raster: OpenRaster, names: tuple[str, ...]) -> list[_Band]:
    """The bands, without alpha; one alone has the names, of several each has its description."""
    name = PurePath(raster.name).name
    places = [place for place in range(raster.count) if raster.count == 1 or place + 1 != raster.alpha]
    if len(places) == 1:
        return [_Band(file, places[0], Listed(names, name), area=pixel_area(raster))]
    described = [tuple(filter(None, [raster.descriptions[place]])) for place in places]
    return [_Band(file, place, Listed(said, name)) for place, said in zip(places, described, strict=True)]


def _names(raster: OpenRaster, data: Any) -> tuple[str, ...]:
    """What the one band of a file may be called by: its description and what the file's name says."""
    said = next(filter(None, raster.descriptions), None)
    path = str(data) if isinstance(data, str | Path) else getattr(data, "name", None)
    file = band_of_file(path) if isinstance(path, str) else None
    return tuple(filter(None, (said, file)))
