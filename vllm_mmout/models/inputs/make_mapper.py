"""Create a model's input mapper, the function that converts a user's input to the model's tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, MMOutError, OptionError, RegistrationError, raise_interrupt, type_and_message
from vllm_mmout.geo import Raster, sensor_of
from vllm_mmout.models.inputs.band_choice import BandChoice, BandList
from vllm_mmout.models.inputs.band_names import InputBand
from vllm_mmout.models.inputs.input_forms import native
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.models.inputs.mapper import nothing_observed
from vllm_mmout.models.inputs.opened_raster import opened_picture
from vllm_mmout.models.inputs.unpacking import unpacked_raster
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.rendering import render
from vllm_mmout.params import OutputParams

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.models.inputs.context import InputContext
    from vllm_mmout.models.inputs.keywords import Keywords
    from vllm_mmout.models.inputs.mapped_input import InputMapper
    from vllm_mmout.registry.input_registry import MapperChoice

Result = TypeVar("Result")


def make_mapper(keywords: Keywords, choice: MapperChoice, context: InputContext) -> Any:
    """Return the input mapper that the model's author registered, or a mapper that uses ``AutoProcessor``."""
    if choice.factory is not None:
        from vllm_mmout.models.config import config_json  # imports transformers

        try:
            mapper: InputMapper = choice.factory(config_json(context.get_hf_config()))
        except MMOutError:
            raise
        except Exception as error:
            raise RegistrationError(failed("input mapper's factory", keywords.model, error)) from error
        if not callable(mapper):
            raise RegistrationError(
                f"the input mapper's factory of {keywords.model} must give a function (data, params), got {mapper!r}"
            )
        return mapper
    if (function := choice.function) is None:
        return AutoProcessorMapper(context, keywords.names)

    def mapper_of_first_registries(data: Any, params: OutputParams) -> Any:
        refuse_reading_options(params, f"the input mapper of {keywords.model} does not know it")
        return function(context, opened(data))

    return mapper_of_first_registries


def refuse_reading_options(params: OutputParams, why: str) -> None:
    """Raise OptionError if the request sets any option for reading rasters. The message gives ``why`` as the reason."""
    for option in params.reads:
        raise OptionError(f"{option} says how a raster is read; {why}, leave it out", param=option)


def failed(role: str, model: str, error: BaseException) -> str:
    """Return the error message for an exception in a function that the model's author wrote."""
    return f"the {role} of {model} failed: {type_and_message(error)}; correct the input or the {role}"


def called(call: Callable[[], Result], role: str, model: str) -> Result:
    """Call a function of the model's author. Convert exceptions to an InputError that names ``role`` and ``model``."""
    try:
        return call()
    except MMOutError:
        raise
    except BaseException as error:
        raise_interrupt(error)
        raise InputError(failed(role, model, error)) from error


class AutoProcessorMapper:
    """Input mapper that passes pictures, or rasters of one or three bands, to the ``AutoProcessor`` of the model.

    uint8 is passed to the processor as an RGB picture, other dtypes as an array [bands, height, width]. If the
    processor only scales, the output gets the input's size and georeference; if it crops or pads, it does not.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"bands", "indices", "nodata"})
    """Names of the raster reading options, such as "bands", that this mapper accepts."""

    def __init__(self, context: InputContext, keywords: Collection[str]) -> None:
        remedy = "decorate its class with @MULTIMODAL_INPUT_REGISTRY.register_input_mapper(RasterMapper.from_config)"
        self._processor = _processor_of(context, remedy)
        images = getattr(self._processor, "image_processor", self._processor)
        self._keywords = keywords
        self._size = _largest(getattr(images, "size", None))
        self._keeps_extent = keeps_extent(self._pixels)

    def __call__(self, data: Any, params: OutputParams) -> MappedInput:
        """Convert one input to the tensors of the model's ``forward``."""
        for option in set(params.reads) - self.reads:
            raise OptionError(
                f"{option} needs a model of rasters; this one's inputs go through a processor of transformers",
                param=option,
            )
        raster = chosen_bands(_read(data, params), params)
        count, height, width = raster.array.shape
        if count not in (1, 3):
            raise InputError(
                f"the input has {count} bands, the model's processor takes pictures of 1 or 3; choose with bands=[...],"
                " which counts from 1; an array must be [bands, height, width], as np.moveaxis(picture, -1, 0)",
                param=BandChoice("", (), params).option,
            )
        if raster.array.dtype != np.uint8 and raster.array.dtype.kind != "f":
            raise InputError(
                f"the input's dtype is {raster.array.dtype}, the model's processor takes pictures of uint8, or floats"
                " as it scales them; scale it to uint8"
            )
        if (valid := raster.valid(params.nodata)) is not None and not valid.all():
            if not valid.any():
                raise nothing_observed(raster.nodata)
            raster = replace(raster, array=np.where(valid, raster.array, np.zeros((), raster.array.dtype)))
        features = self._processor(images=_for_processor(raster), return_tensors="np")
        tensors = {key: np.asarray(value)[0] for key, value in features.items() if key in self._keywords}
        seen = next((value.shape[-2:] for value in tensors.values() if value.ndim >= 3), None)
        if not self._keeps_extent:
            return MappedInput(tensors, Source(assumed=raster.assumed))
        source = Source(
            size=(height, width),
            seen=seen,
            georeference=raster.georeference,
            valid=valid,
            metadata=raster.metadata,
            picture=partial(_picture, raster),
            assumed=raster.assumed,
        )
        return MappedInput(tensors, source)

    def _pixels(self, picture: NDArray[np.uint8]) -> NDArray[Any]:
        features = self._processor(images=_for_processor(Raster(picture)), return_tensors="np")
        pixels: NDArray[Any] = np.asarray(features["pixel_values"])[0]
        return pixels

    def dummy(self) -> Any:
        """Return a black picture of the processor's target size."""
        return np.zeros((3, *self._size), np.uint8)


class FolderImageProcessor:
    """Converter of pictures in prompts for models that generate tokens. It calls the model's own image processor."""

    def __init__(self, context: InputContext) -> None:
        remedy = "register a function (context, data) with register_image_input_mapper"
        processor = _processor_of(context, remedy)
        self._images = getattr(processor, "image_processor", processor)
        if not hasattr(self._images, "preprocess"):  # without an image processor, AutoProcessor returns a tokenizer
            raise RegistrationError(
                f"the model has no input mapper, and {context.model_config.model} has no image processor of"
                f" transformers; {remedy}, or put a preprocessor_config.json there"
            )

    def __call__(self, context: InputContext, data: Any) -> Any:
        """Return the tensors of one picture, with a batch axis of length 1."""
        return self._images(images=[data], return_tensors="pt")

    def dummy(self) -> Any:
        """Return a black picture of the image processor's target size."""
        return _picture(Raster(np.zeros((3, *_largest(getattr(self._images, "size", None))), np.uint8)))


def _processor_of(context: InputContext, remedy: str) -> Any:
    """Load the ``AutoProcessor`` of the model's folder. Raise RegistrationError if it cannot be loaded."""
    try:
        return context.get_hf_processor()
    except Exception as error:
        raise RegistrationError(
            "the model has no input mapper, and no processor of transformers can be loaded from"
            f" {context.model_config.model}: {type_and_message(error)}; {remedy}, or put a preprocessor_config.json"
            " there"
        ) from error


_COLOURS = ("red", "green", "blue")


def chosen_bands(raster: Raster, params: OutputParams) -> Raster:
    """Return the bands that the request chooses. The default is red, green and blue, or all bands except alpha."""
    choice = BandChoice("picture", _COLOURS, params)
    if choice.requested is None:
        return _in_colours(raster.without_alpha(), choice)
    try:
        return raster.select(choice.requested)
    except InputError as error:
        raise InputError(str(error), param=choice.option) from None


def _in_colours(raster: Raster, choice: BandChoice) -> Raster:
    """Return a raster of the bands named red, green and blue. Return a raster of one or two bands unchanged.

    If these names are not found among more than three bands, return the raster unchanged.
    """
    if raster.bands < len(_COLOURS):
        return raster
    sensor, colours = sensor_of("", raster.metadata), raster.colours or (None,) * raster.bands
    names = [tuple(filter(None, [description])) for description in raster.descriptions]
    listed = [InputBand(own, "", sensor, colour) for own, colour in zip(names, colours, strict=True)]
    try:
        places = choice.places(BandList("the input", tuple(listed), tuple(range(raster.bands))))
    except InputError:
        if raster.bands > len(_COLOURS):
            return raster  # the caller refuses its number of bands
        raise
    if places == list(range(raster.bands)):
        return raster
    return replace(raster.select([place + 1 for place in places]), assumed=(*raster.assumed, *choice.noted))


def _read(data: Any, params: OutputParams) -> Raster:
    with unpacked_raster(opened_picture(data), params) as raster:
        return raster.read()


def opened(data: Any) -> Any:
    """Read a file for an input mapper: as a PIL image if it is uint8 with three bands, else as an array.

    Mappers got the same types from vLLM's early releases. PIL images, tensors and dicts are returned unchanged.
    """
    if isinstance(data, np.ndarray):
        return native(data)
    if hasattr(data, "getbands") or isinstance(data, Mapping) or hasattr(data, "detach"):
        return data
    raster = _read(data, OutputParams()).without_alpha()
    return _picture(raster) if raster.array.dtype == np.uint8 and len(raster.array) == 3 else raster.array


def _for_processor(raster: Raster) -> Any:
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
    """Return (height, width) of an image processor's largest output. ``size`` is the processor's size setting."""

    def stated(name: str) -> Any:  # transformers' class for sizes has attributes
        return size.get(name) if isinstance(size, Mapping) else getattr(size, name, None)

    edge = stated("longest_edge") or stated("shortest_edge") or 512
    return int(stated("height") or edge), int(stated("width") or edge)


_TEST_SHAPES = ((360, 600), (600, 360), (512, 512))
"""Sizes (height, width) of the pictures that `keeps_extent` tests a processor with. Many processors crop only pictures
that are not square."""
_EDGE_TOLERANCE = 0.015
"""Tolerance for the grey levels 0 and 1 that `keeps_extent` expects at opposite edges of a processed test picture.

Half the gradient's change from one pixel to the next is tolerated in addition."""


def keeps_extent(process: Callable[[NDArray[np.uint8]], NDArray[Any]]) -> bool:
    """Return whether an image processor keeps the extent of pictures: it does not crop, pad, turn or split them."""
    try:
        return all(_keeps(process, height, width) for height, width in _TEST_SHAPES)
    except (ValueError, TypeError, KeyError, IndexError):  # it expects other pictures, or returns something else
        return False


def _keeps(process: Callable[[NDArray[np.uint8]], NDArray[Any]], height: int, width: int) -> bool:
    black, white = (process(np.full((3, height, width), value, np.uint8)) for value in (0, 255))
    if black.ndim != 3 or np.ptp(black, axis=(1, 2)).any() or np.ptp(white, axis=(1, 2)).any():
        return False  # other axes, or a border that is not part of the picture
    span = (white - black)[:, :1, :1]
    for axis, size in ((1, height), (2, width)):
        ramp = np.linspace(0, 255, size).round().astype(np.uint8)
        picture = np.broadcast_to(ramp if axis == 2 else ramp[:, None], (3, height, width))
        seen = (process(np.ascontiguousarray(picture)) - black) / span
        first, last = seen.take(0, axis), seen.take(-1, axis)
        allowed = _EDGE_TOLERANCE + 0.5 / seen.shape[axis]
        if first.max() > allowed or last.min() < 1 - allowed:
            return False
    return True
