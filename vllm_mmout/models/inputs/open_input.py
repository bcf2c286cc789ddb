"""Open an input, which may be several files and dates, as a single raster with the model's bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_mmout.errors import InputError
from vllm_mmout.geo import (
    CLOUD_CODES,
    FINER,
    RASTER_SUFFIXES,
    CloudLayer,
    Layer,
    OpenRaster,
    OpenStack,
    OpenWithoutClouds,
    band_of_file,
    cloud_codes_of,
    pixel_area,
    rasters_of,
    sensor_of,
    trailing_band,
)
from vllm_mmout.models.inputs.band_choice import BandChoice, BandList
from vllm_mmout.models.inputs.band_names import InputBand
from vllm_mmout.models.inputs.catalogued import CataloguedFile, CataloguedInput
from vllm_mmout.models.inputs.frames import FilesOfDate, Frame, dates_of, in_order_of_dates, miscounted, note_order
from vllm_mmout.models.inputs.input_forms import as_folder
from vllm_mmout.models.inputs.opened_raster import opened_picture, opened_raster
from vllm_mmout.models.inputs.unsupported_forms import other_form

if TYPE_CHECKING:
    from vllm_mmout.geo import CloudCodes
    from vllm_mmout.models.inputs.raster_view import PlanesMapper
    from vllm_mmout.params import OutputParams

_Opener: TypeAlias = Callable[[Any], OpenRaster]


def opened_planes(
    data: Any, params: OutputParams, mapper: PlanesMapper
) -> tuple[OpenRaster, tuple[int, ...], tuple[str, ...]]:
    """Open an input, and choose the bands for the model that ``mapper`` describes. Only file headers are read.

    Returns:
        The open raster, which the caller must close. The band numbers (from 1) in the model's order; with several
        dates, the dates of each band follow one another. Notes for the user about assumptions that were made.

    """
    choice = BandChoice(mapper.model, mapper.bands, params, mapper.one_for_all, unpack=mapper.unpacked)
    with ExitStack() as opened:
        layers = _planes(data, choice, mapper.num_frames, opened)
        raster, places = layers[0].raster, tuple(layer.place + 1 for layer in layers)
        if more := len({id(layer.raster) for layer in layers}) - 1:
            of_folder = data.name if isinstance(data, CataloguedInput) else as_folder(data)
            name = of_folder or f"{PurePath(raster.name).name} and {more} more file{'s' * (more > 1)}"
            raster = OpenStack(layers, str(name), resampling=params.resampling, nodata=params.nodata)
            places = tuple(range(1, len(layers) + 1))
        if params.mask_clouds:
            raster = OpenWithoutClouds(raster, choice.clouds)
        opened.pop_all()  # the caller closes it
    return raster, places, tuple(dict.fromkeys(choice.noted))


def _planes(data: Any, choice: BandChoice, frames: int | None, opened: ExitStack) -> list[Layer]:
    if frames != 1:
        data = unwrapped(data)
    if frames is None:
        return chosen_layers(data, choice, opened)
    if len(getattr(data, "shape", ())) == 4:
        if choice.params.mask_clouds:
            raise InputError("mask_clouds is for files, and the input is an array; leave it out", param="mask_clouds")
        return _of_array(data, choice, frames, opened)
    folder = as_folder(data)
    if (dates := dates_of(data, frames)) is None:
        layers = chosen_layers(data, choice, opened, frames)
        count = len(choice.wanted)
        return [layers[date * count + band] for band in range(count) for date in range(frames)]
    if len(dates) != frames:
        raise miscounted(dates, choice.model, frames)
    by_date = []
    for number, date in enumerate(dates, start=1):
        try:
            by_date.append(Frame.of(date, chosen_layers(unwrapped(date), choice, opened)))
        except InputError as error:
            name = f" ({date.name})" if folder is not None else ""
            raise InputError(f"date {number} of {frames}{name}: {error}", param=error.param) from error
    if folder is not None and frames > 1:
        by_date = in_order_of_dates(by_date, folder, choice.noted)
    else:
        note_order(by_date, choice.noted)
    return [frame.layers[band] for band in range(len(choice.wanted)) for frame in by_date]


def unwrapped(data: Any) -> Any:
    """Remove nested lists of a single item: [[1]] becomes 1."""
    while isinstance(data, list | tuple) and len(data) == 1:
        (data,) = data
    return data


def _of_array(data: Any, choice: BandChoice, frames: int, opened: ExitStack) -> list[Layer]:
    bands, dates, height, width = data.shape
    if dates != frames:
        raise InputError(f"the array has {dates} dates, model {choice.model!r} takes {frames}, of {list(data.shape)}")
    raster = opened.enter_context(opened_raster(data.reshape(bands * dates, height, width)))
    band_list = BandList("the array", (InputBand(),) * bands, tuple(range(bands)))
    chosen = choice.places(band_list)
    return [Layer(raster, band * dates + date) for band in chosen for date in range(dates)]


def chosen_layers(data: Any, choice: BandChoice, opened: ExitStack, dates: int = 1) -> list[Layer]:
    """Open an input and return the bands that ``choice`` selects for the model.

    ``opened`` closes the files of these bands. All other files are closed at once.
    """
    open_one = opened_picture if choice.one_for_all else opened_raster
    listed = _bands(data, opened, open_one)
    images = max((band.source.images for band in listed.bands if isinstance(band.source, OpenRaster)), default=1)
    form = other_form(getattr(data, "shape", ()), images, choice)
    try:
        chosen = [listed.bands[place] for place in choice.places(listed, dates)]
    except InputError as error:
        raise InputError("; ".join(filter(None, [str(error), form])), param=error.param) from None
    clouds = [_cloud_band(listed)] if choice.params.mask_clouds else []
    rasters: dict[Any, OpenRaster] = {}
    for file in dict.fromkeys(band.source for band in (*chosen, *(band for band, _ in clouds))):
        rasters[file] = file if isinstance(file, OpenRaster) else opened.enter_context(_opened_now(file, open_one))
    for file in {band.source for band in listed.bands} - rasters.keys():
        if isinstance(file, OpenRaster):
            file.close()
    layers = [Layer(rasters[band.source], band.place, next(iter(band.names), None)) for band in chosen]
    choice.clouds.extend(CloudLayer(Layer(rasters[band.source], band.place), codes) for band, codes in clouds)
    return choice.unpack(layers, choice.params)


def _cloud_band(listed: BandList) -> tuple[InputBand, CloudCodes]:
    """Find the band that marks clouds in an input. Return the band, and the meaning of its codes.

    If the band exists at several resolutions, return that with the smallest pixels. Raise InputError if the input has
    no such band, or bands with different codes.
    """
    coded = [(band, codes) for band in listed.bands if (codes := cloud_codes_of(band.names)) is not None]
    kinds = list(dict.fromkeys(codes.name for _, codes in coded))
    if len(kinds) != 1:
        known = ", ".join(codes.name for codes in CLOUD_CODES)
        which = f"has {' and '.join(kinds)}" if kinds else "has none of them"
        raise InputError(
            f"mask_clouds needs one band that marks clouds ({known}), and {listed.what} {which}; leave it out, or give"
            " one of them beside the other bands",
            param="mask_clouds",
        )
    return min(coded, key=lambda found: found[0].area)


def _opened_now(file: Path | CataloguedFile, open_one: _Opener) -> OpenRaster:
    return file.opened(open_one) if isinstance(file, CataloguedFile) else open_one(file)


def _bands(data: Any, opened: ExitStack, open_one: _Opener) -> BandList:
    if isinstance(data, FilesOfDate):
        return _bands_of_folder(data.files, data.folder, open_one, f"the files of {data.date} in {data.folder}")
    if isinstance(data, CataloguedInput):
        return _bands_of_record(data, opened, open_one)
    if (folder := as_folder(data)) is not None:
        return _bands_of_whole_folder(folder, opened, open_one)
    if isinstance(data, list | tuple):
        return _bands_of_list(data, opened, open_one)
    if isinstance(data, Mapping):
        bands = [
            band
            for name, file in data.items()
            for band in _bands_of_file(opened.enter_context(open_one(file)), file, name)
        ]
        return BandList("the input", tuple(bands))
    return _bands_of_one(data, "the input", opened, open_one)


def _bands_of_whole_folder(folder: Path, opened: ExitStack, open_one: _Opener) -> BandList:
    files = rasters_of(folder)
    if len(files) == 1:
        return _bands_of_one(files[0], f"{folder} is a folder with one raster that", opened, open_one)
    return _bands_of_folder(files, folder, open_one, f"{folder} is a folder that")


def _bands_of_record(data: CataloguedInput, opened: ExitStack, open_one: _Opener) -> BandList:
    """Return the bands listed in a catalogue record, such as a STAC item.

    If the record has one file and lists no bands, read them from the file.
    """
    if len(data.files) == 1 and not data.files[0].bands:
        (file,) = data.files
        return _bands_of_one(file.address, f"the file of {data.name}", opened, lambda _: file.opened(open_one))
    bands = tuple(
        InputBand(band.names, file.name, data.sensor, source=file, place=place)
        for file in data.files
        for place, band in enumerate(file.bands)
    )
    return BandList(data.name, bands, by_number=False)


def _bands_of_one(data: Any, subject: str, opened: ExitStack, open_one: _Opener) -> BandList:
    """Return the bands of an input that is a single file. Error messages call the input ``subject``."""
    raster = opened.enter_context(open_one(data))
    alpha = None if raster.count == 1 or raster.alpha is None else raster.alpha - 1
    bands = tuple(replace(band, source=raster) for band in _listed(raster, _names(raster, data), ""))
    by_tags = alpha is not None and bands[alpha].colour != "alpha"
    defaults = tuple(place for place in range(raster.count) if place != alpha)
    return BandList(subject, bands, defaults, alpha=alpha, alpha_by_tags=by_tags)


def _bands_of_list(data: Sequence[Any], opened: ExitStack, open_one: _Opener) -> BandList:
    """Return the bands of a list of files, in the order of the list."""
    if not data:
        raise InputError("the input is an empty list; give one file at least")
    if len(data) == 1:
        return _bands_of_one(data[0], "the list of 1 file", opened, open_one)
    bands = [band for file in data for band in _bands_of_file(opened.enter_context(open_one(file)), file)]
    return BandList(f"the list of {len(data)} files", tuple(bands), tuple(range(len(bands))), keeps_order=True)


def _bands_of_folder(files: Sequence[Path], folder: Path, open_one: _Opener, subject: str) -> BandList:
    """Return the bands of all files in a folder. If files have the same band, keep the band with the smallest pixels.

    Requests can choose these bands only by name, since the files have no order.
    """
    bands = _finest(_bands_of_files(files, folder, open_one))
    bands = [replace(band, colour=None) for band in bands]  # colours may belong to previews in a product
    return BandList(subject, tuple(bands), by_number=False)


def _bands_of_files(files: Sequence[Path], folder: Path, open_one: _Opener) -> list[InputBand]:
    bands = []
    for path in files:
        try:
            with open_one(path) as raster:
                bands += _bands_of_raster(path, raster, _names(raster, path))
        except InputError:  # raised again if the file is chosen
            bands.append(InputBand((band_of_file(path.name),), path.name, sensor_of(path, {}), source=path))
    if not bands:
        suffixes = ", ".join(RASTER_SUFFIXES)
        raise InputError(f"{folder} is a folder without a raster ({suffixes}); give the folder that holds the files")
    return bands


def _listed(raster: OpenRaster, names: tuple[str, ...], file: str) -> list[InputBand]:
    """Return a list of a file's bands, each with its names, sensor and colour.

    ``names`` are used for the only band of a file. Several bands are named by their descriptions.
    """
    sensor = sensor_of(raster.name, raster.metadata)
    colours = raster.colours or (None,) * raster.count
    if raster.count == 1:
        return [InputBand(names, file, sensor)]
    described = [tuple(filter(None, [description])) for description in raster.descriptions]
    return [
        InputBand(own_names, file, sensor, colour, place=place)
        for place, (own_names, colour) in enumerate(zip(described, colours, strict=True))
    ]


def _finest(bands: Sequence[InputBand]) -> list[InputBand]:
    """Drop bands that also exist with smaller pixels, as in a Sentinel-2 product."""
    areas: dict[str, float] = {}
    for band in bands:
        for name in band.names[:1]:
            areas[name] = min(areas.get(name, math.inf), band.area)
    return [band for band in bands if not band.names or band.area <= areas[band.names[0]] / FINER]


def _bands_of_file(raster: OpenRaster, data: Any, name: Any = None) -> list[InputBand]:
    names = _names(raster, data) if name is None else (str(name),)
    return _bands_of_raster(raster, raster, names)


def _bands_of_raster(file: OpenRaster | Path, raster: OpenRaster, names: tuple[str, ...]) -> list[InputBand]:
    """Return a raster's bands without the alpha band. If only one band remains, give it the names ``names``."""
    listed = _listed(raster, names, PurePath(raster.name).name)
    places = [place for place in range(raster.count) if raster.count == 1 or place + 1 != raster.alpha]
    if len(places) == 1:
        return [replace(listed[places[0]], names=names, source=file, area=pixel_area(raster))]
    return [replace(listed[place], source=file) for place in places]


def _names(raster: OpenRaster, data: Any) -> tuple[str, ...]:
    """Return possible names of a file's only band: its description, and the band name in the file's name."""
    description = next(filter(None, raster.descriptions), None)
    path = str(data) if isinstance(data, str | Path) else getattr(data, "name", None)
    file = band_of_file(path) if isinstance(path, str) else None
    return tuple(dict.fromkeys(filter(None, (description, file, file and trailing_band(file)))))
