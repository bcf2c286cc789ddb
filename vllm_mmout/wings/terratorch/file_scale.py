"""Choose whether integers are scaled as their file declares, or by a TerraTorch model's ``constant_scale``."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose
from typing import TYPE_CHECKING, Final

import msgspec

from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.unpacking import assumption, packing_of, statement, unpacked_layers
from vllm_mmout.params import FILE
from vllm_mmout.wings.terratorch.scaling import SCALE

if TYPE_CHECKING:
    from vllm_mmout.geo import Layer, Packing
    from vllm_mmout.params import OutputParams
    from vllm_mmout.wings.terratorch.scaling import ImageScaling

_REFLECTANCE: Final = 1e-4
"""Factor that turns stored integers of HLS and Sentinel-2 into reflectance. A model with this ``constant_scale``
expects reflectance as input."""
_ROUNDING: Final = 1e-6
"""Scales that differ by less than this fraction count as equal, since files may store them as float32."""


def scaled_layers(scaling: ImageScaling, layers: Sequence[Layer], params: OutputParams) -> list[Layer]:
    """Return an image's bands. If the files' scale differs from the model's scale, scale the bands as the files state.

    A scale or offset in the request overrides both. Only integers are compared, and only with a model's scale other
    than 1. The scaled values are floats, which the model takes as reflectance without applying its own scale.

    Raises:
        InputError: the files state another scale than the model's, and not for all bands, or the model's scale is not
            known to make reflectance.

    """
    said = params.scale is not None or params.offset is not None
    if said or scaling.scale == 1 or not all(map(_holds_integers, layers)):  # a scale of 1 leaves the unit open
        return unpacked_layers(layers, params)
    stated = [layer for layer in layers if packing_of(layer).told]
    others = [layer for layer in stated if not _equals(packing_of(layer), scaling.scale or _REFLECTANCE)]

    def sentence_of(packing: Packing, bands: Sequence[Layer], params: OutputParams) -> str | None:
        return _scale_note(packing, bands, scaling) if packing.told else assumption(packing, bands, params)

    if not others:
        return unpacked_layers(layers, params, sentence_of)
    if _of_reflectance(scaling) and len(stated) == len(layers):
        return unpacked_layers(layers, msgspec.structs.replace(params, scale=FILE), sentence_of)
    packing = packing_of(others[0])
    alike = [layer for layer in others if packing_of(layer) == packing]
    others_say = "" if len(stated) == len(layers) else ", other bands state none"
    raise InputError(
        f"{statement(packing, alike)}{others_say}, and {_model_says(scaling)}, so it is unknown which of them leads to"
        ' the values of the training; set scale="file" for the values of the files, which the model takes as they are,'
        f' scale="stored" for their numbers times the {SCALE}, or numbers for scale and offset',
        param="scale",
    )


def _holds_integers(layer: Layer) -> bool:
    """Return whether a band holds integers that are not scaled on reading.

    The integers of a NetCDF file, for example, are scaled on reading.
    """
    return layer.raster.dtype.kind in "iu" and not packing_of(layer).applied


def _equals(packing: Packing, factor: float) -> bool:
    """Return whether a file's scale equals ``factor`` and its offset is 0, apart from rounding errors."""
    offset = packing.offset - packing.shift * packing.scale
    return isclose(packing.scale, factor, rel_tol=_ROUNDING) and abs(offset) <= _ROUNDING


def _of_reflectance(scaling: ImageScaling) -> bool:
    return scaling.scale is not None and isclose(scaling.scale, _REFLECTANCE, rel_tol=_ROUNDING)


def _model_says(scaling: ImageScaling) -> str:
    if scaling.scale is None:
        return f"config.json sets no {SCALE} for the model"
    return f"the model's {SCALE} is {scaling.scale:.9g}"


def _scale_note(packing: Packing, bands: Sequence[Layer], scaling: ImageScaling) -> str | None:
    """Return a note for the user if a file's scale and offset (``packing``) differ from the model's scale.

    Return None if the file and the model agree. There is also a note if config.json sets no scale for the model.
    """
    if scaling.scale is None:
        shifted = f"{packing.shift} was added to the numbers, and they" if packing.shift else "the numbers"
        return (
            f"{statement(packing, bands)}, and {_model_says(scaling)}; {shifted} were multiplied by the default of its"
            ' data module. scale="file" gives the values of the file, which the model takes as reflectance.'
        )
    if _equals(packing, scaling.scale):
        return None
    return (
        f"{statement(packing, bands)}, and {_model_says(scaling)}; the file's were applied, since the model takes"
        f' reflectance. scale="file" confirms this, scale="stored" gives the model the numbers times its {SCALE}.'
    )
