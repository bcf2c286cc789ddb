"""How the images of a TerraTorch model are scaled and standardised, from its data module; no data set is looked at."""

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
from vllm_mmout.wings.terratorch.scaling import MEANS, SCALE, STDS, in_terratorch, nested, of_image, statistics_said

_REMEDY = 'say them in config.json: "mmout": {"input": {"means": [...], "stds": [...], "constant_scale": 0.0001}}'
_SHORT = "terratorch.datamodules"
"""Where a class without a module is, as TerraTorch's YAML has it."""
_TRANSFORMS = ("train_transform", "val_transform", "test_transform", "predict_transform")


@dataclass(frozen=True, slots=True)
class Standard:
    """Of one image: integers are multiplied by ``scale``, then (value - mean) / std."""

    scale: float
    mean: Tensor
    """float32 [1, bands], or [1, bands, frames]."""
    std: Tensor
    """As ``mean``."""
    lacks_scale: bool
    """Whether integers would be standardised as they are, by statistics of reflectance."""


def standards_of(config: TerratorchConfig) -> dict[str, Standard]:
    """The standard of each image.

    Where the folder's ``mmout`` table says it, that counts; else the arguments of the data module; else what the data
    module does to a batch (``aug``), and the default of its ``constant_scale``. The module is imported only where the
    folder leaves something open.
    """
    module = nested(config.pretrained, "data")
    if not isinstance(module.get("init_args") or {}, Mapping):
        raise ModelError(f'"init_args" of the data module in config.json must be a table, got {module["init_args"]!r}')
    path, arguments = str(module.get("class_path", "")), nested(module, "init_args")
    said = statistics_said(arguments, config.overrides)
    if not {MEANS, STDS} <= set(said):
        if not module:
            raise ModelError(
                f"config.json names no data module, which would hold means and standard deviations; {_REMEDY}"
            )
        made = _class_at(path)
        asked = _made(made, {key: value for key, value in arguments.items() if key not in _TRANSFORMS})
        means, stds = _statistics(getattr(asked, "aug", None), made.__name__)
        said = {MEANS: means, STDS: stds, **said}
    alone = len(config.modalities) == 1
    return {one.name: _standard(one, path, said[MEANS], said[STDS], alone=alone) for one in config.modalities}


def _standard(one: Modality, module: str, means: Any, stds: Any, *, alone: bool) -> Standard:
    scale = one.scaling.scale
    if scale is None:
        scale = _default_scale(module)
    mean, std = (_numbers(one, what, alone=alone) for what in (means, stds))
    if bool((std == 0).any()):
        raise ModelError(f"a standard deviation of {one.name} is 0; {_REMEDY}")
    lacks_scale = replace(one.scaling, scale=scale).lacks_scale(mean.flatten().tolist(), std.flatten().tolist())
    return Standard(scale, mean, std, lacks_scale)


def _numbers(one: Modality, values: Any, *, alone: bool) -> Tensor:
    values = of_image(values, one.name, one.bands, alone=alone)
    try:
        numbers = torch.as_tensor(values, dtype=torch.float32, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"means and standard deviations of {one.name} are no numbers ({values!r}); {_REMEDY}"
        ) from error
    if numbers.ndim == 0:
        numbers = numbers[None]
    if numbers.ndim == 2 and one.frames is None:  # by band and date, for images without dates
        numbers = numbers.mean(dim=1)
    if numbers.ndim not in (1, 2) or numbers.shape[0] not in (1, len(one.bands)):
        raise ModelError(
            f"means and standard deviations of {one.name} are {list(numbers.shape)} numbers for {len(one.bands)} bands;"
            f" {_REMEDY}"
        )
    return numbers.expand(len(one.bands), *numbers.shape[1:])[None]


def _default_scale(path: str) -> float:
    """The default of the data module's ``constant_scale``; of a class that is not there 1, as in nearly all."""
    try:
        made = _class_at(path)
    except ModelError:
        return 1.0
    parameter = inspect.signature(made).parameters.get(SCALE)
    default = None if parameter is None or parameter.default is parameter.empty else parameter.default
    return 1.0 if default is None else float(default)


def _class_at(path: str) -> Any:
    if not in_terratorch(path):
        raise ModelError(
            f'"pretrained_cfg.data.class_path" in config.json is {path!r}; data modules of terratorch and torchgeo are'
            f" known, nothing else is imported. Of other ones {_REMEDY}"
        )
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module or _SHORT), name)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"the data module {path} is not there ({error}); it is asked for statistics: {_REMEDY}"
        ) from error


def _made(made: Any, arguments: Mapping[str, Any]) -> Any:
    """A data module, without its data: places that the folder leaves open are not looked at."""
    places = {
        name: "unused"
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.default is parameter.empty and "root" in name
    }
    try:
        return made(**{**places, **arguments})
    except Exception as error:
        raise ModelError(
            f"TerraTorch cannot make the data module {made.__name__}: {type_and_message(error)}. It is asked for"
            f" means and standard deviations: {_REMEDY}"
        ) from error


def _statistics(aug: Any, module: str) -> tuple[Any, Any]:
    """Means and standard deviations that a data module subtracts and divides by; 0 and 1 where it does neither."""
    for step in _steps(aug):
        flags = getattr(step, "flags", None)
        if isinstance(flags, Mapping) and {"mean", "std"} <= set(flags):  # of kornia
            return flags["mean"], flags["std"]
        if hasattr(step, "means") and hasattr(step, "stds"):  # of TerraTorch
            most = getattr(step, "max_pixel_value", None)
            if most is None:
                return step.means, step.stds
            return [mean * most for mean in step.means], [std * most for std in step.stds]
    if aug is None or _is_nothing(aug):
        return [0.0], [1.0]
    raise ModelError(f"what {module} does to images ({aug!r}) is not known here; {_REMEDY}")


def _steps(aug: Any) -> Iterator[Any]:
    yield aug
    children = getattr(aug, "children", None)
    if callable(children):
        for child in children():
            yield from _steps(child)
    elif isinstance(aug, Sequence) and not isinstance(aug, str):
        for child in aug:
            yield from _steps(child)


def _is_nothing(aug: Any) -> bool:
    """Whether a step leaves a batch as it is."""
    batch = {"image": torch.full((1, 1, 1, 1), 2.0)}
    try:
        return bool((aug(dict(batch))["image"] == batch["image"]).all())
    except Exception:  # noqa: BLE001 - whatever it is, it is not nothing
        return False
