"""Scaling: what ``config.json`` says of integers and of statistics; needs no TerraTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_mmout.errors import OptionError

MEANS: Final = "means"
STDS: Final = "stds"
SCALE: Final = "constant_scale"

_PACKAGES: Final = ("terratorch", "torchgeo")
_LARGEST: Final = 2.0
"""Of statistics of reflectance, which is 0 to 1 but over clouds and snow."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How one image is scaled and standardised, as far as ``config.json`` says it."""

    scale: float | None
    """Integers are multiplied by it; None: the default of the data module's class, which is not said here."""
    means: tuple[float, ...] | None
    """All numbers there are, by band or by band and date; None: the data module's own."""
    stds: tuple[float, ...] | None
    sure: bool = False
    """Whether the ``mmout`` table says the scale: then 1 is meant, as of masks."""

    def lacks_scale(self, means: Sequence[float] | None = None, stds: Sequence[float] | None = None) -> bool:
        """Whether integers would be standardised as they are, by statistics (a request's or these) of reflectance."""
        means, stds = means or self.means, stds or self.stds
        if self.scale != 1 or self.sure or means is None or stds is None:
            return False
        return of_reflectance(means, stds)


def of_reflectance(means: Iterable[float], stds: Iterable[float]) -> bool:
    """Whether statistics are those of reflectance; 0 and 1, which change nothing, are not."""
    means, stds = tuple(means), tuple(stds)
    nothing = not any(means) and all(std == 1 for std in stds)
    return not nothing and all(abs(number) <= _LARGEST for number in (*means, *stds))


def no_scale(image: str) -> str:
    """What to say where integers come and `Scaling.lacks_scale`."""
    return (
        f"{image} holds integers, and the model's means and standard deviations are those of reflectance, while its"
        f" {SCALE} is 1: digital numbers would be taken for reflectance; give scale=0.0001 in the request, or say it in"
        f' config.json: "mmout": {{"input": {{"{SCALE}": 0.0001}}}}; 1 there, where they are not to be multiplied'
    )


def nested(entries: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The table in a table of a table ... by these names; empty where there is none."""
    for name in names:
        found = entries.get(name)
        entries = found if isinstance(found, Mapping) else {}
    return entries


def statistics_said(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``means`` and ``stds`` as the folder writes them: those of the ``mmout`` table, else both of the data module."""
    given = {name: data.get(name) for name in (MEANS, STDS)}
    if any(value is None or isinstance(value, str) for value in given.values()):  # a text names a file
        given = {}
    return given | {name: overrides[name] for name in (MEANS, STDS) if name in overrides}


def scaling_of(
    image: str, bands: Sequence[str], module: Mapping[str, Any], overrides: Mapping[str, Any], *, alone: bool
) -> Scaling:
    """What a folder says of one image; ``module`` is its ``pretrained_cfg.data``, ``alone``: there is no other."""
    data = nested(module, "init_args")
    said = statistics_said(data, overrides)
    means, stds = (_flat(of_image(said.get(name), image, bands, alone=alone)) for name in (MEANS, STDS))
    return Scaling(_scale(image, module, {**data, **overrides}), means, stds, SCALE in overrides)


def of_image(values: Any, image: str, bands: Sequence[str], *, alone: bool) -> Any:
    """Of statistics by image, or by band, those of one image; others as they are."""
    if isinstance(values, Mapping) and (image in values or not alone):
        return values.get(image)
    return [values.get(band) for band in bands] if isinstance(values, Mapping) else values


def in_terratorch(class_path: str) -> bool:
    """Whether a data module is one of TerraTorch or torchgeo; a name without dots is one of TerraTorch's."""
    return class_path.partition(".")[0] in _PACKAGES or bool(class_path and "." not in class_path)


def _scale(image: str, module: Mapping[str, Any], said: Mapping[str, Any]) -> float | None:
    class_path = str(module.get("class_path", ""))
    if SCALE not in said:  # the generic ones have the default 1, others may have another
        plain = class_path.rpartition(".")[2].startswith("Generic") or not in_terratorch(class_path)
        return 1.0 if plain else None
    value = said[SCALE]
    if isinstance(value, Mapping):
        value = value.get(image)
    try:
        return 1.0 if value is None else float(value)
    except (TypeError, ValueError):
        raise OptionError(f'"{SCALE}" in config.json must be a number, got {value!r}') from None


def _flat(values: Any) -> tuple[float, ...] | None:
    """All numbers of nested lists; None where something is no number."""
    if isinstance(values, int | float):
        return (float(values),)
    if not isinstance(values, list | tuple):
        return None
    parts = [_flat(value) for value in values]
    numbers = tuple(number for part in parts for number in part or ())
    return None if None in parts or not numbers else numbers
