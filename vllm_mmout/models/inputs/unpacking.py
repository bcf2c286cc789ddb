"""Apply scale and offset to the pixels of an input. The request's values override the values in the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias

from vllm_mmout.geo import Layer, OpenRaster, OpenUnpacked, Packing, Unpacking
from vllm_mmout.params import FILE, STORED

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams

Numbers: TypeAlias = "float | tuple[float, ...] | None"
Sentence: TypeAlias = "Callable[[Packing, Sequence[Layer], OutputParams], str | None]"


def numbers_of(params: OutputParams) -> tuple[Numbers, Numbers]:
    """Return the numbers in the request's options ``scale`` and ``offset``.

    A number is None if the option is not set, or if ``scale`` is a word such as "file".
    """
    scale = params.scale
    return None if isinstance(scale, str) else scale, params.offset


def has_numbers(params: OutputParams) -> bool:
    """Return whether the request gives a scale or an offset as a number."""
    return numbers_of(params) != (None, None)


def unpacked_raster(raster: OpenRaster, params: OutputParams) -> OpenRaster:
    """Apply scale and offset to all bands of a raster. The request's values override the values in the file."""
    return unpacked_layers([Layer(raster, place) for place in range(raster.count)], params)[0].raster


def unpacked_layers(layers: Sequence[Layer], params: OutputParams, sentence_of: Sentence | None = None) -> list[Layer]:
    """Apply scale and offset to the bands ``layers``. The request's values override the values in the files.

    If a file states a scale that is not applied, or the request needs one that the file does not state, a note is added
    to `RasterFacts.assumed`, once for all files that state the same scale. ``sentence_of`` returns the text of the
    note, by default `assumption`.
    """
    rasters = {id(layer.raster): layer.raster for layer in layers}
    stated: dict[Packing, list[Layer]] = {}
    for layer in layers:
        stated.setdefault(packing_of(layer), []).append(layer)
    unpacked = {key: _unpacked(raster, params) for key, raster in rasters.items()}
    for packing, bands in stated.items():
        sentence = (sentence_of or assumption)(packing, bands, params)
        is_chosen = has_numbers(params) or params.scale is not None
        raster = unpacked[id(bands[0].raster)]
        for text in (sentence, packing.doubt if packing.told and not is_chosen else None):
            if text and text not in raster.assumed:
                raster.told(assumed=(*raster.assumed, text))
    return [replace(layer, raster=unpacked[id(layer.raster)]) for layer in layers]


def packing_of(layer: Layer) -> Packing:
    """Return the scale and offset that a file states for a band."""
    return layer.raster.packing[layer.place] if layer.raster.packing else Packing()


def _unpacked(raster: OpenRaster, params: OutputParams) -> OpenRaster:
    if has_numbers(params) or params.scale == STORED or not raster.packing:
        return raster
    unpackings = [Unpacking.of(packing, by_file=params.scale == FILE) for packing in raster.packing]
    if all(unpacking == Unpacking() for unpacking in unpackings):
        return raster
    return OpenUnpacked(raster, unpackings, params.nodata)


def statement(packing: Packing, bands: Sequence[Layer]) -> str:
    """Return the first part of a note to the user, such as "a.tif: scale 0.1 and offset 0 are stated by its tags"."""
    scale, offset = f"scale {packing.scale:.9g}", f"offset {packing.offset:.9g}"
    return f"{_file_names(bands)}: {scale} and {offset} are stated by {packing.said_by}"


def assumption(packing: Packing, bands: Sequence[Layer], params: OutputParams) -> str | None:
    """Return a note for the user if it is unclear whether a file's scale and offset must be applied.

    Return None if it is clear. ``packing`` is the scale and offset that the file states for ``bands``.
    """
    if not packing.told:
        if params.scale == FILE and bands[0].raster.dtype.kind in "iu":
            return f"{_file_names(bands)}: no scale or offset is stated; the numbers were taken as stored."
        return None if has_numbers(params) or params.scale is not None else packing.doubt or None
    if has_numbers(params):
        scale, offset = numbers_of(params)
        if scale is None and packing.scale != 1:
            missing, default = "scale", "1"
        elif offset is None and packing.offset != 0:
            missing, default = "offset", "0"
        else:
            return None
        return (
            f"{statement(packing, bands)}; the request gives numbers without {missing}, and {default} was taken."
            ' Give scale and offset, or scale="file".'
        )
    if params.scale is not None or packing.applied:
        return None
    handling = 'the numbers were taken as stored. scale="file" applies both, scale="stored" takes the numbers as stored'
    if packing.shift:
        handling = (
            f"{packing.shift} was added to the counts, as in products of before processing baseline 04.00. This is"
            f' right if the model takes such counts. If it takes reflectance, set scale="file". scale="stored" would'
            f" take the counts without adding {packing.shift}"
        )
    return f"{statement(packing, bands)}; {handling}."


def _file_names(bands: Sequence[Layer]) -> str:
    """Return the names of the bands' files as text, such as "a.tif and 2 more files"."""
    files = list(dict.fromkeys(PurePath(layer.raster.name).name for layer in bands))
    more = len(files) - 1
    return f"{files[0]}{f' and {more} more file' if more else ''}{'s' * (more > 1)}"
