"""Convert user inputs (texts, pictures, masks, class labels, numbers) to the tensors of a diffusers pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.models.inputs.make_mapper import refuse_reading_options
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.models.inputs.open_input import opened_planes
from vllm_mmout.models.inputs.raster_view import RasterView
from vllm_mmout.params import OutputParams
from vllm_mmout.wings.iterative.pipelines.arguments import (
    LABELS,
    PICTURES,
    STEPS,
    as_bytes,
    default_of,
    options_of,
    refuse_unknown,
    settable_arguments,
)
from vllm_mmout.wings.iterative.pipelines.loading import KEY, class_of_folder, index_of

_LARGEST: Final = 8192
"""Largest height and width of an input picture, in pixels."""
_MOST_PIXELS: Final = 1 << 24
"""Maximum number of pixels of the picture that a request asks for with the option ``size``."""
_PROMPT: Final = "prompt"
_IMAGE: Final = "image"


def mapper_of(config: Mapping[str, Any]) -> PipelineMapper | RasterPipelineMapper:
    """Return a pipeline folder's input mapper: for rasters if ``config.json`` has ``bands``, else for pictures."""
    folder = config[KEY]["folder"]
    pipeline = class_of_folder(folder)
    if "bands" in config:
        base = RasterMapper.from_config({"max_size": 512, **config})
        sizes = {name: getattr(base, name) for name in ("min_size", "tile_size", "edge", "multiple_of")}
        return RasterPipelineMapper(base.model, base.bands, base.max_size, _IMAGE, **sizes, pipeline=pipeline)
    id2label = index_of(folder).get("id2label")
    labels = id2label if isinstance(id2label, Mapping) else {}
    return PipelineMapper(
        pipeline, {name.strip(): int(row) for row, names in labels.items() for name in names.split(",")}
    )


@dataclass(frozen=True, slots=True)
class RasterPipelineMapper(RasterMapper):
    """Input mapper that passes the bands of a raster to a pipeline as ``image`` [bands, height, width]."""

    pipeline: type = object

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the request options that the pipeline supports, such as "guidance_scale"."""
        return options_of(self.pipeline)

    def tensors(self, view: RasterView, planes: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """Return a dict of pipeline arguments: the pixels (``image``), and the number of denoising steps.

        The pixels are converted to float32. The number is the argument ``num_inference_steps``. It is left out if
        neither the request nor the pipeline sets it.
        """
        return {self.keyword: planes.astype(np.float32), **_steps(self.pipeline, view.params)}


@dataclass(frozen=True, slots=True)
class PipelineMapper:
    """Input mapper that accepts a text, a class label, a picture, or a dict of the pipeline's own arguments.

    A class label is a number or a name. In a dict ``{"prompt": ..., "image": ..., "mask_image": ...}``, pictures are
    files, PIL images or arrays [3, height, width]. A mask is white where the picture is to be made anew.
    """

    pipeline: type
    labels: Mapping[str, int] = field(default_factory=dict)
    """Class numbers by class name, from ``id2label`` in ``model_index.json``."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Keys that a dict input may have. They are the names of the pipeline's arguments."""
        return settable_arguments(self.pipeline)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the request options that the pipeline supports, such as "guidance_scale"."""
        return options_of(self.pipeline)

    @property
    def words(self) -> tuple[str, ...]:
        """Keys under which a dict input may hold plain text. A string under any other key names a picture file."""
        return tuple(name for name in self.fields if name not in PICTURES)

    @property
    def opens_files(self) -> bool:
        """Whether a string in an input may name a picture file. True if the pipeline has an argument for a picture."""
        return bool({*PICTURES} & set(self.fields))

    def dummy(self) -> Any:
        """Return an example input, which vLLM uses to profile the model at start-up."""
        if LABELS in self.fields:
            return {LABELS: 0}
        picture = np.zeros((3, 512, 512), np.uint8)
        return {name: picture if name in PICTURES else "a" for name in (_PROMPT, _IMAGE) if name in self.fields}

    def __call__(self, data: Any, params: OutputParams) -> MappedInput:
        """Map one input to tensors. Raise InputError for a wrong input, OptionError for an unsupported option."""
        name = self.pipeline.__name__
        refuse_reading_options(params, f"{name} makes pictures")
        refuse_unknown(self.pipeline, params)
        _check_size(params)
        arguments = {name: value for name, value in self._as_arguments(data).items() if value is not None}
        if unknown := [str(key) for key in arguments if key not in self.fields]:
            raise InputError(f"{name} takes {', '.join(self.fields)}, got {', '.join(unknown)}; leave it out")
        tensors = {key: self._tensor(key, value) for key, value in arguments.items()}
        return MappedInput({**_steps(self.pipeline, params), **tensors})

    def _as_arguments(self, data: Any) -> Mapping[str, Any]:
        """Return an input as a dict of pipeline arguments, for example ``{"prompt": text}`` for a text."""
        if isinstance(data, Mapping):
            return {LABELS if key == "class_label" else key: value for key, value in data.items()}
        text = isinstance(data, str)
        if LABELS in self.fields and (text or isinstance(data, int | np.integer) or np.ndim(data) == 0):
            return {LABELS: data}
        if text and _PROMPT in self.fields:
            return {_PROMPT: data}
        if _IMAGE in self.fields and data is not None:
            return {_IMAGE: data}
        raise InputError(f"{self.pipeline.__name__} takes {', '.join(self.fields[:3])}, got {type(data).__name__}")

    def _tensor(self, name: str, value: Any) -> NDArray[Any]:
        if name in PICTURES:
            return _picture(name, value)
        if name == LABELS:
            return self._label(value)
        if isinstance(value, str):
            return as_bytes(value)
        number = np.asarray(value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value)
        if number.ndim or number.dtype.kind not in "biuf" or not np.isfinite(number):
            raise InputError(f"{name} must be a text or a finite number, got {value!r:.200}")
        return number

    def _label(self, value: Any) -> NDArray[Any]:
        if isinstance(value, str):
            if value not in self.labels:
                names = ", ".join([*self.labels][:8])
                raise InputError(
                    f"there is no class {value!r}; use a number, or a name: {names or 'the model has no names'}"
                )
            return np.array(self.labels[value])
        label = np.asarray(value)
        if label.size != 1 or label.dtype.kind not in "iu" or label.reshape(-1)[0] < 0:
            raise InputError(f"a class label must be a whole number from 0 on, or a name, got {value!r:.200}")
        return label.reshape(())


class _Pictures(RasterMapper):
    """Input mapper that opens RGB pictures. A grey picture's single band is used for all three colours."""

    __slots__ = ()

    @property
    def one_for_all(self) -> bool:
        return True


def _picture(name: str, data: Any) -> NDArray[Any]:
    """Read a picture as uint8 [3, height, width]. If ``name`` contains "mask", return [1, height, width]."""
    pictures = _Pictures(name, ("red", "green", "blue"), _LARGEST)
    raster, planes, _ = opened_planes(data, OutputParams(), pictures)
    try:
        view = RasterView(raster, planes, OutputParams(), pictures)
        if max(view.size) > _LARGEST:
            raise InputError(
                f"{name} is {view.size[0]} x {view.size[1]} pixels; give one of at most {_LARGEST} pixels in height and"
                " width"
            )
        array = view.read().array
    finally:
        raster.close()
    if array.dtype != np.uint8:
        raise InputError(f"{name} must be a picture of uint8, got {array.dtype}; scale it to 0 to 255")
    if "mask" not in name:
        return np.ascontiguousarray(array)
    from PIL import Image

    return np.array(Image.fromarray(np.ascontiguousarray(np.moveaxis(array, 0, -1))).convert("L"))[np.newaxis]


def _steps(pipeline: type, params: OutputParams) -> dict[str, NDArray[Any]]:
    """Return {"num_inference_steps": count}, or {} if neither the request nor the pipeline sets a count.

    The request's count takes precedence. A ``strength`` below 1 reduces the count later.
    """
    count = params.num_inference_steps or default_of(pipeline, STEPS, None)
    return {STEPS: np.array(count)} if isinstance(count, int) else {}


def _check_size(params: OutputParams) -> None:
    if params.sides is not None and params.sides[0] * params.sides[1] > _MOST_PIXELS:
        raise OptionError(
            f"size: {params.size} is more than {_MOST_PIXELS} pixels; ask for a smaller size", param="size"
        )
