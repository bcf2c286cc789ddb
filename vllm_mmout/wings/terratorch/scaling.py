"""Read the scale and statistics of input values from a folder's ``config.json``, without importing TerraTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_mmout.errors import OptionError

MEANS: Final = "means"
STDS: Final = "stds"
SCALE: Final = "constant_scale"

_PACKAGES: Final = ("terratorch", "torchgeo")
_MAX_REFLECTANCE: Final = 2.0
"""Largest mean or standard deviation (absolute value) that bands of reflectance can have. Larger values are statistics
of unscaled integers. The limit is above 1, because the reflectance of snow and clouds can exceed 1."""


@dataclass(frozen=True, slots=True)
class ImageScaling:
    """Scale, means and standard deviations for one of a model's input images, read from ``config.json``."""

    scale: float | None
    """Factor for integer values. None means the default of TerraTorch's data module class."""
    means: tuple[float, ...] | None
    """Mean of each band, or of each band and date, as a flat tuple. If None, the means of TerraTorch's data module are
    used."""
    stds: tuple[float, ...] | None
    """Standard deviation of each band, or of each band and date, as a flat tuple. If None, the standard deviations of
    TerraTorch's data module are used."""
    scale_is_explicit: bool = False
    """Whether the ``mmout`` table of config.json sets the scale.

    If True, a scale of 1 is intended, for example for integer masks. If False, a scale of 1 may be a default.
    """

    def formulas(self, bands: int) -> list[str]:
        """Return the formula that scales each band, as text such as "(integers * 0.0001 - 0.12) / 0.05".

        If a band has another mean and standard deviation for each date, the formula shows those of the first date.
        """
        scale = "scaled by TerraTorch's data module" if self.scale is None else f"integers * {self.scale:g}"
        scale = "value" if self.scale == 1 else scale
        if self.means is None or self.stds is None:
            return [f"{scale}, then standardised by TerraTorch's data module"] * bands
        means, stds = (_per_band(numbers, bands) for numbers in (self.means, self.stds))
        return [f"({scale} - {mean:g}) / {std:g}" for mean, std in zip(means, stds, strict=True)]

    def lacks_scale(self, means: Sequence[float] | None = None, stds: Sequence[float] | None = None) -> bool:
        """Return True if the model expects reflectance, but no scale is set that converts integers to reflectance.

        The model expects reflectance if its means and standard deviations are small, see `is_reflectance`. The
        arguments take precedence over the statistics of this object.
        """
        means, stds = means or self.means, stds or self.stds
        if self.scale != 1 or self.scale_is_explicit or means is None or stds is None:
            return False
        return is_reflectance(means, stds)


def _per_band(numbers: Sequence[float], bands: int) -> Sequence[float]:
    """Return one number per band. If ``numbers`` has one per band and date, return the numbers of the first date."""
    dates = len(numbers) // bands
    return [numbers[0]] * bands if len(numbers) < bands else numbers[:: max(1, dates)][:bands]


def is_reflectance(means: Iterable[float], stds: Iterable[float]) -> bool:
    """Return whether an image's statistics are in the range of reflectance.

    The absolute value of each mean and standard deviation must be at most 2. Return False for means of 0 with
    deviations of 1, because they leave values unchanged.
    """
    means, stds = tuple(means), tuple(stds)
    identity = not any(means) and all(std == 1 for std in stds)
    return not identity and all(abs(number) <= _MAX_REFLECTANCE for number in (*means, *stds))


def no_scale(image: str) -> str:
    """Return the error message for integer images of a model that needs reflectance but sets no scale."""
    return (
        f"{image} holds integers, and the model's means and standard deviations are for reflectance, while its"
        f" {SCALE} is 1, so digital numbers would be used as reflectance; give scale=0.0001 in the request, or set it"
        f' in config.json: "mmout": {{"input": {{"{SCALE}": 0.0001}}}}; set 1 there if the integers need no scaling'
    )


def nested(entries: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a nested dict, such as ``entries["data"]["init_args"]``. Return an empty dict if a key is missing.

    The keys are the arguments after ``entries``.
    """
    for name in names:
        table = entries.get(name)
        entries = table if isinstance(table, Mapping) else {}
    return entries


def statistics_in(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict with a model's ``means`` and ``stds``. Values in ``overrides`` take precedence over ``data``.

    ``overrides`` is the table ``"mmout": {"input": ...}`` of config.json. ``data`` holds the data module's arguments.
    Its values are used only if it has both ``means`` and ``stds``, and neither is a file name.
    """
    statistics = {name: data.get(name) for name in (MEANS, STDS)}
    if any(value is None or isinstance(value, str) for value in statistics.values()):  # a text is a file's name
        statistics = {}
    return statistics | {name: overrides[name] for name in (MEANS, STDS) if name in overrides}


def scaling_of(
    image: str, bands: Sequence[str], module: Mapping[str, Any], overrides: Mapping[str, Any], *, alone: bool
) -> ImageScaling:
    """Return the scale and statistics that config.json sets for an image. Values in ``overrides`` take precedence.

    ``module`` is the table ``pretrained_cfg.data`` of config.json, which describes TerraTorch's data module.
    ``overrides`` is the table ``"mmout": {"input": ...}``. ``alone`` is true if the model takes no other image.
    """
    data = nested(module, "init_args")
    statistics = statistics_in(data, overrides)
    means, stds = (_flat(image_values(statistics.get(name), image, bands, alone=alone)) for name in (MEANS, STDS))
    return ImageScaling(_scale(image, module, {**data, **overrides}), means, stds, SCALE in overrides)


def image_values(values: Any, image: str, bands: Sequence[str], *, alone: bool) -> Any:
    """Select the numbers of one image, such as band means, from ``values``.

    If ``values`` is a table by image name, return the image's entry. If it is a table by band name, return a list with
    the number of each band. Missing entries are None. If ``values`` is not a table, return it unchanged. A table by
    band name needs ``alone``, which is true if the model takes no other image.
    """
    if isinstance(values, Mapping) and (image in values or not alone):
        return values.get(image)
    return [values.get(band) for band in bands] if isinstance(values, Mapping) else values


def in_known_package(class_path: str) -> bool:
    """Return whether a data module class belongs to TerraTorch or torchgeo. A class name without module counts too."""
    return class_path.partition(".")[0] in _PACKAGES or bool(class_path and "." not in class_path)


def _scale(image: str, module: Mapping[str, Any], entries: Mapping[str, Any]) -> float | None:
    class_path = str(module.get("class_path", ""))
    if SCALE not in entries:  # the default of generic modules is 1, and of other modules it varies
        defaults_to_one = class_path.rpartition(".")[2].startswith("Generic") or not in_known_package(class_path)
        return 1.0 if defaults_to_one else None
    value = entries[SCALE]
    if isinstance(value, Mapping):
        value = value.get(image)
    try:
        return 1.0 if value is None else float(value)
    except (TypeError, ValueError):
        raise OptionError(f'"{SCALE}" in config.json must be a number, got {value!r}') from None


def _flat(values: Any) -> tuple[float, ...] | None:
    """Return all numbers in nested lists as a flat tuple, or None if a value is not a number."""
    if isinstance(values, int | float):
        return (float(values),)
    if not isinstance(values, list | tuple):
        return None
    parts = [_flat(value) for value in values]
    numbers = tuple(number for part in parts for number in part or ())
    return None if None in parts or not numbers else numbers
