"""AutoProcessorMapper: the input mapper of a model without one of its own, from the processor in its folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError, OptionError, RegistrationError
from vllm_mmout.models.extent import keeps_extent
from vllm_mmout.models.input_forms import as_raster, chosen_bands, observed
from vllm_mmout.models.mapper import MappedInput
from vllm_mmout.outputs.render import render
from vllm_mmout.outputs.source import Source
from vllm_mmout.raster.raster import Raster

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from vllm_mmout.models.context import InputContext
    from vllm_mmout.params import OutputParams


class AutoProcessorMapper:
    """Maps pictures and rasters of one or three bands through the ``AutoProcessor`` of the model's folder.

    uint8 goes to the processor as an RGB picture, other dtypes as an array [bands, height, width]. Where the processor
    only scales, what the model gives is laid on the input; where it crops or pads, it is not.

    Args:
        context: the model's.
        keywords: what ``forward`` takes; what else the processor gives is left out.

    Raises:
        RegistrationError: the folder has no processor that can be loaded.

    """

    def __init__(self, context: InputContext, keywords: Collection[str]) -> None:
        model = context.model_config.model
        try:
            self._processor = context.get_hf_processor()
        except Exception as error:
            raise RegistrationError(
                f"the model has no input mapper, and no processor of transformers can be loaded from {model}:"
                f" {type(error).__name__}: {error}; decorate its class with"
                " @MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config), or put a"
                " preprocessor_config.json there"
            ) from error
        images = getattr(self._processor, "image_processor", self._processor)
        self._keywords = keywords
        self._size = _largest(getattr(images, "size", None))
        self._keeps_extent = keeps_extent(self._pixels)

    def __call__(self, data: Any, params: OutputParams) -> MappedInput:
        """Map one input.

        Raises:
            InputError: it cannot be read, or the processor cannot take it.

        """
        for option in set(params.reads) - {"bands", "indices", "nodata"}:
            raise OptionError(
                f"{option} needs a model of rasters; this one's inputs go through a processor of transformers",
                param=option,
            )
        raster = chosen_bands(as_raster(data), params)
        count, height, width = raster.array.shape
        if count not in (1, 3):
            raise InputError(
                f"the input has {count} bands, the model's processor takes pictures of 1 or 3; choose with bands=[...],"
                " which counts from 1",
                param="bands" if params.bands is not None else "indices" if params.indices is not None else None,
            )
        if raster.array.dtype != np.uint8 and raster.array.dtype.kind != "f":
            raise InputError(
                f"the input's dtype is {raster.array.dtype}, the model's processor takes pictures of uint8, or floats"
                " as it scales them; scale it to uint8"
            )
        array, valid = observed(raster, raster.array, params)
        raster = replace(raster, array=array)
        features = self._processor(images=_for_processor(raster), return_tensors="np")
        tensors = {key: np.asarray(value)[0] for key, value in features.items() if key in self._keywords}
        seen = next((value.shape[-2:] for value in tensors.values() if value.ndim >= 3), None)
        if not self._keeps_extent:
            return MappedInput(tensors)
        source = Source(
            size=(height, width),
            seen=seen,
            georeference=raster.georeference,
            valid=valid,
            metadata=raster.metadata,
            picture=partial(_picture, raster),
        )
        return MappedInput(tensors, source)

    def _pixels(self, picture: NDArray[np.uint8]) -> NDArray[Any]:
        """What the processor makes of a picture [3, height, width]."""
        features = self._processor(images=_for_processor(Raster(picture)), return_tensors="np")
        pixels: NDArray[Any] = np.asarray(features["pixel_values"])[0]
        return pixels

    def dummy(self) -> Any:
        """A black picture of the size that the processor scales to."""
        return np.zeros((3, *self._size), np.uint8)


def opened(data: Any) -> Any:
    """What functions of vLLM's first registries take: a file as a PIL image, or as an array; all else as it is."""
    if hasattr(data, "getbands") or isinstance(data, np.ndarray | Mapping) or hasattr(data, "detach"):
        return data
    raster = as_raster(data).without_alpha()
    return _picture(raster) if raster.array.dtype == np.uint8 and len(raster.array) == 3 else raster.array


def _for_processor(raster: Raster) -> Any:
    """An RGB picture of uint8 in one or three bands, the array otherwise."""
    if raster.array.dtype == np.uint8 and len(raster.array) in (1, 3):
        return _picture(raster)
    return raster.array if len(raster.array) != 1 else np.repeat(raster.array, 3, axis=0)


def _picture(raster: Raster) -> Image:
    from PIL import Image

    if raster.array.dtype != np.uint8:
        return render(raster.array, None, None).convert("RGB")
    bands = raster.array if len(raster.array) == 3 else np.repeat(raster.array, 3, axis=0)
    return Image.fromarray(np.ascontiguousarray(np.moveaxis(bands, 0, 2)))


def _largest(size: Any) -> tuple[int, int]:
    """Height and width of a processor's ``size``."""
    sizes = dict(size) if isinstance(size, Mapping) or hasattr(size, "keys") else {}
    edge = sizes.get("longest_edge") or sizes.get("shortest_edge") or 512
    return int(sizes.get("height") or edge), int(sizes.get("width") or edge)
