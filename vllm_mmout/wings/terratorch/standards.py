"""Find the scale and statistics of a TerraTorch model's images in its data module, without reading data."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vllm_mmout.errors import ModelError, type_and_message
from vllm_mmout.wings.terratorch.config import Modality, TerratorchConfig
from vllm_mmout.wings.terratorch.scaling import (
    MEANS,
    SCALE,
    STDS,
    image_values,
    in_known_package,
    nested,
    statistics_in,
)

_REMEDY = 'set them in config.json: "mmout": {"input": {"means": [...], "stds": [...], "constant_scale": 0.0001}}'
_DEFAULT_PACKAGE = "terratorch.datamodules"
"""Python package that is assumed for a data module class if config.json gives the class name alone."""
_TRANSFORMS = ("train_transform", "val_transform", "test_transform", "predict_transform")


@dataclass(frozen=True, slots=True)
class Standard:
    """Statistics to standardise an image as (value - ``mean``) / ``std``. Integers are first scaled by ``scale``."""

    scale: float
    mean: Tensor
    """Mean of each band as float32 [1, bands], or of each band and date as float32 [1, bands, dates]."""
    std: Tensor
    """Standard deviations, in the shape of ``mean``."""
    lacks_scale: bool
    """Whether ``mean`` and ``std`` are statistics of reflectance, while no scale converts integers to reflectance."""


def standards_of(config: TerratorchConfig) -> dict[str, Standard]:
    """Return the scale, means and standard deviations of each image, by the image's name.

    Statistics come from the folder's ``mmout`` table, or else from the arguments of the data module, or else from the
    augmentation (``aug``) of the data module. The scale may come from the default of its ``constant_scale``. The module
    is only imported if the folder leaves something open.
    """
    module = nested(config.pretrained, "data")
    if not isinstance(module.get("init_args") or {}, Mapping):
        raise ModelError(f'"init_args" of the data module in config.json must be a table, got {module["init_args"]!r}')
    path, arguments = str(module.get("class_path", "")), nested(module, "init_args")
    statistics = statistics_in(arguments, config.overrides)
    if not {MEANS, STDS} <= set(statistics):
        if not module:
            raise ModelError(
                f"config.json names no data module, which would hold means and standard deviations; {_REMEDY}"
            )
        module_class = _class_at(path)
        data_module = _data_module(
            module_class, {key: value for key, value in arguments.items() if key not in _TRANSFORMS}
        )
        means, stds = _statistics(getattr(data_module, "aug", None), module_class.__name__)
        statistics = {MEANS: means, STDS: stds, **statistics}
    alone = len(config.modalities) == 1
    return {
        image.name: _standard(image, path, statistics[MEANS], statistics[STDS], alone=alone)
        for image in config.modalities
    }


def _standard(image: Modality, module: str, means: Any, stds: Any, *, alone: bool) -> Standard:
    scale = image.scaling.scale
    if scale is None:
        scale = _default_scale(module)
    mean, std = (_numbers(image, values, alone=alone) for values in (means, stds))
    if bool((std == 0).any()):
        raise ModelError(f"a standard deviation of {image.name} is 0; {_REMEDY}")
    lacks_scale = replace(image.scaling, scale=scale).lacks_scale(mean.flatten().tolist(), std.flatten().tolist())
    return Standard(scale, mean, std, lacks_scale)


def _numbers(image: Modality, values: Any, *, alone: bool) -> Tensor:
    values = image_values(values, image.name, image.bands, alone=alone)
    try:
        numbers = torch.as_tensor(values, dtype=torch.float32, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"means and standard deviations of {image.name} are not numbers ({values!r}); {_REMEDY}"
        ) from error
    if numbers.ndim == 0:
        numbers = numbers[None]
    if numbers.ndim == 2 and image.frames is None:  # statistics by band and date, for an image without dates
        numbers = numbers.mean(dim=1)
    if numbers.ndim not in (1, 2) or numbers.shape[0] not in (1, len(image.bands)):
        raise ModelError(
            f"means and standard deviations of {image.name} are {list(numbers.shape)} numbers for"
            f" {len(image.bands)} bands; {_REMEDY}"
        )
    return numbers.expand(len(image.bands), *numbers.shape[1:])[None]


def _default_scale(path: str) -> float:
    """Return the default value of the argument ``constant_scale`` of a data module class.

    ``path`` is the import path of the class. Return 1 if the class has no such default, or cannot be imported.
    """
    try:
        module_class = _class_at(path)
    except ModelError:
        return 1.0
    parameter = inspect.signature(module_class).parameters.get(SCALE)
    default = None if parameter is None or parameter.default is parameter.empty else parameter.default
    return 1.0 if default is None else float(default)


def _class_at(path: str) -> Any:
    if not in_known_package(path):
        raise ModelError(
            f'"pretrained_cfg.data.class_path" in config.json is {path!r}; only data modules of terratorch and torchgeo'
            f" are imported. For others, {_REMEDY}"
        )
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module or _DEFAULT_PACKAGE), name)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"the data module {path} cannot be found ({error}); it is needed for statistics: {_REMEDY}"
        ) from error


def _data_module(module_class: Any, arguments: Mapping[str, Any]) -> Any:
    """Create TerraTorch's data module without its data. Required folder arguments get a placeholder."""
    places = {
        name: "unused"
        for name, parameter in inspect.signature(module_class).parameters.items()
        if parameter.default is parameter.empty and "root" in name
    }
    try:
        return module_class(**{**places, **arguments})
    except Exception as error:
        raise ModelError(
            f"TerraTorch cannot create the data module {module_class.__name__}: {type_and_message(error)}. It is needed"
            f" for means and standard deviations: {_REMEDY}"
        ) from error


def _statistics(aug: Any, module: str) -> tuple[Any, Any]:
    """Return the means and standard deviations that an augmentation uses to standardise images.

    Return means of 0 and deviations of 1 if the augmentation leaves images unchanged. Raise ModelError if the
    augmentation changes images in an unknown way.
    """
    for step in _steps(aug):
        flags = getattr(step, "flags", None)
        if isinstance(flags, Mapping) and {"mean", "std"} <= set(flags):  # a step of kornia
            return flags["mean"], flags["std"]
        if hasattr(step, "means") and hasattr(step, "stds"):  # a step of TerraTorch
            max_value = getattr(step, "max_pixel_value", None)
            if max_value is None:
                return step.means, step.stds
            return [mean * max_value for mean in step.means], [std * max_value for std in step.stds]
    if aug is None or _is_identity(aug):
        return [0.0], [1.0]
    raise ModelError(f"the data module {module} changes images in an unknown way ({aug!r}); {_REMEDY}")


def _steps(aug: Any) -> Iterator[Any]:
    yield aug
    children = getattr(aug, "children", None)
    if callable(children):
        for child in children():
            yield from _steps(child)
    elif isinstance(aug, Sequence) and not isinstance(aug, str):
        for child in aug:
            yield from _steps(child)


def _is_identity(aug: Any) -> bool:
    """Return whether an augmentation leaves a batch unchanged."""
    batch = {"image": torch.full((1, 1, 1, 1), 2.0)}
    try:
        return bool((aug(dict(batch))["image"] == batch["image"]).all())
    except Exception:  # noqa: BLE001 - a step that fails is not an identity
        return False
