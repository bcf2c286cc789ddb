"""One input of one or several files, of one or several dates, opened as one raster."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import InputError
from vllm_mmout.models.band_choice import BandChoice, BandList, Listed
from vllm_mmout.models.band_files import chosen_layers
from vllm_mmout.models.input_forms import as_folder, opened_raster
from vllm_mmout.raster.stack.folder import folders_in, rasters_in
from vllm_mmout.raster.stack.stack import Layer, OpenStack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_mmout.models.mapper import RasterMapper
    from vllm_mmout.params import OutputParams
    from vllm_mmout.raster.windowed import OpenRaster


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
        data = _unwrapped(data)
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
            by_date.append(chosen_layers(_unwrapped(date), choice, opened))
        except InputError as error:
            raise InputError(f"date {number} of {frames}: {error}", param=error.param) from error
    return [layers[band] for band in range(len(choice.wanted)) for layers in by_date]


def _unwrapped(data: Any) -> Any:
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
