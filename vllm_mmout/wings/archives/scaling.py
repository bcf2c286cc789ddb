"""Scale input values band by band, as the field ``value_scaling`` of a STAC item with the MLM extension says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor

_KINDS: Final[Mapping[str, tuple[tuple[str, ...], Callable[..., tuple[float, float, float, float]]]]] = {
    "min-max": (("minimum", "maximum"), lambda least, most: (least, most - least, -math.inf, math.inf)),
    "z-score": (("mean", "stddev"), lambda mean, std: (mean, std, -math.inf, math.inf)),
    "clip": (("minimum", "maximum"), lambda least, most: (0.0, 1.0, least, most)),
    "clip-min": (("minimum",), lambda least: (0.0, 1.0, least, math.inf)),
    "clip-max": (("maximum",), lambda most: (0.0, 1.0, -math.inf, most)),
    "offset": (("value",), lambda value: (value, 1.0, -math.inf, math.inf)),
    "scale": (("value",), lambda value: (0.0, value, -math.inf, math.inf)),
}
"""Maps each type of ``value_scaling``, such as "min-max", to the names of its numeric fields and a function.

The function converts the numbers in the fields to (subtract, divide, minimum, maximum). MLM 1.4, the Machine Learning
Model extension of STAC, defines the types.
"""


_LARGEST: Final = 3.4e38
"""Largest finite number of float32."""


@dataclass(frozen=True, slots=True)
class BandScaling:
    """Scaling of each band: (value - subtract) / divide, then clamping to the range from ``least`` to ``most``."""

    subtract: tuple[float, ...]
    divide: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]

    @classmethod
    def of(cls, value: Any, bands: int) -> BandScaling | None:
        """Parse ``value_scaling``: one entry for all bands, or one per band. Raise OptionError if it is invalid."""
        entries = [value] if isinstance(value, Mapping) else value
        if not entries:
            return None
        if not isinstance(entries, Sequence) or isinstance(entries, str) or len(entries) not in (1, bands):
            raise OptionError(
                f"value_scaling must be a list of 1 entry or {bands}, one for each band, got {value!r:.200}"
            )
        rows = [_scaling_numbers(entry) for entry in entries] * (bands if len(entries) == 1 else 1)
        return cls(*zip(*rows, strict=True))

    def __call__(self, values: Tensor) -> Tensor:
        """Scale values [n, bands, ...], and return them as float32."""
        scaled = values.float()

        def per_band(numbers: tuple[float, ...]) -> Tensor:
            return scaled.new_tensor(numbers).reshape(-1, *(1,) * (values.ndim - 2))

        if any(self.subtract):
            scaled = scaled - per_band(self.subtract)
        if set(self.divide) != {1.0}:
            scaled = scaled / per_band(self.divide)
        if any(map(math.isfinite, (*self.least, *self.most))):
            scaled = scaled.clamp(per_band(self.least), per_band(self.most))
        return scaled


def _scaling_numbers(entry: Any) -> tuple[float, float, float, float]:
    """Convert a band's ``value_scaling`` entry of a STAC item to (subtract, divide, minimum, maximum)."""
    kind = entry.get("type") if isinstance(entry, Mapping) else ""
    if kind is None or entry is None:
        return 0.0, 1.0, -math.inf, math.inf
    if not isinstance(kind, str) or kind not in _KINDS:
        raise OptionError(
            f"value_scaling has {entry!r:.200}; its type must be one of {', '.join(_KINDS)}, or null: expressions are"
            " not evaluated"
        )
    names, made_of = _KINDS[kind]
    values = [entry.get(name) for name in names]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < _LARGEST for n in values):
        raise OptionError(f"value_scaling of type {kind!r} needs the numbers {', '.join(names)}, got {entry!r:.200}")
    subtract, divide, least, most = map(float, made_of(*values))
    if divide == 0:
        raise OptionError(f"value_scaling divides by 0: {entry!r:.200}")
    if least > most:
        raise OptionError(f"the minimum of value_scaling is above its maximum: {entry!r:.200}")
    return subtract, divide, least, most
