"""`RegressionProcessor`, which returns measurements (depth, biomass, soil moisture) as a raster in their units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.option_values import checked_names
from vllm_mmout.processors.parts import Parts
from vllm_mmout.processors.raw import (
    asked_output,
    decoded_tiles,
    describe,
    has_method,
    not_of_reduce,
    only_tensor,
    own_array,
    queue_copy,
)

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.processors.part import Part

_TAKES = "regression output must be floating point [n, bands, height, width], or [n, height, width] for one band"
_AXES = 4  # batch, bands, rows, columns
_LARGEST = float(np.finfo(np.float32).max)


_STORED = {
    "float32": (-_LARGEST, _LARGEST, math.nan),
    "float16": (-65504, 65504, math.nan),
    "uint8": (0, 254, 255),
    "int8": (-127, 127, -128),
    "uint16": (0, 65534, 65535),
    "int16": (-32767, 32767, -32768),
}
"""Maps each dtype for measurements to (lowest value, highest value, nodata value).

32-bit integers are not supported, since float32 cannot represent all of their values.
"""


class RegressionProcessor(OutputProcessor):
    """Processor for models that predict measurements, such as depth, as a tensor [n, bands, height, width].

    `reduce` computes value = raw * scale + offset in float32 on the device, clips it, and converts it to ``dtype``.
    NaN is nodata. So is an infinity that ``clip`` leaves, since it is not a measurement and would spoil a reader's
    statistics.

    ``dtype`` is the dtype that is sent and stored. Integers hold the value itself, rounded half to even to whole units,
    so that a reader needs no scale from the file: for soil moisture in steps of a percent, let ``scale`` convert it to
    percent. A value outside the range of the dtype becomes the nearest value within it. If tiles overlap, float32 is
    sent instead of integers, so that `assemble` averages values before they are rounded.

    Args:
        scale: a finite number other than 0, or one for each band.
        offset: a finite number, or one for each band.
        units: unit of the values, such as "Mg/ha", or one for each band (None for a band without a unit); GeoTIFFs
            store it for each band.
        band_names: one name for each band.
        clip: the lowest and the highest value, in ``units``; None for an open side.
        dtype: "float32", "float16" (nodata NaN), "uint8" (nodata 255), "uint16" (65535), "int8" (-128) or "int16"
            (-32768).

    Raises:
        OptionError: an option is malformed, or two of them differ in the number of bands.

    """

    name: ClassVar[str] = "regression"
    modality: ClassVar[str] = "raster"
    outputs: ClassVar[tuple[str, ...]] = ("values",)

    def __init__(
        self,
        *,
        scale: float | Sequence[float] = 1.0,
        offset: float | Sequence[float] = 0.0,
        units: str | Sequence[str | None] | None = None,
        band_names: Sequence[str] | None = None,
        clip: Sequence[float | None] | None = None,
        dtype: str = "float32",
    ) -> None:
        self._scale = _checked_numbers("scale", scale)
        if not np.array(self._scale, np.float32).all():
            raise OptionError(f"scale must not be 0 in float32, which would make all values alike, got {scale!r}")
        self._offset = _checked_numbers("offset", offset)
        self._units = _checked_units(units)
        self._band_names = () if band_names is None else checked_names(band_names, "band_names", "band")
        self._clip = None if clip is None else _checked_clip(clip)
        if not isinstance(dtype, str) or dtype not in _STORED:
            raise OptionError(f"dtype must be one of {', '.join(_STORED)}, got {dtype!r}")
        self._dtype = dtype
        options = {"scale": scale, "offset": offset, "units": units, "band_names": band_names}
        self._entries = {option: len(value) for option, value in options.items() if isinstance(value, list | tuple)}
        if len(set(self._entries.values())) > 1:
            counts = ", ".join(f"{option} {count}" for option, count in self._entries.items())
            raise OptionError(f"options differ in the number of bands ({counts}); give one entry a band")

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Scale and clip the model's values, and convert them to ``dtype``, [n, bands, height, width].

        If overlapping tiles will be averaged, the values become float32 instead.

        ``output`` must be floating point [n, bands, height, width], or [n, height, width] for one band. Raises
        ReduceError for another shape or dtype, or another number of bands than the options.
        """
        import torch

        asked_output(self, "regression", params)
        tensor = self._checked_values(only_tensor(output, _TAKES, ReduceError))
        scale, offset = (
            queue_copy(torch.tensor(numbers, dtype=torch.float32).reshape(-1, 1, 1), tensor.device)
            for numbers in (self._scale, self._offset)
        )
        # The result is a new tensor, so it may be changed in place. Adding 0.0 turns -0.0 into 0.0.
        values = (tensor.to(torch.float32) * scale).add_(offset)
        if self._clip is not None:
            values.clamp_(*self._clip)
        dtype = self._sent_dtype(params)
        low, high, nodata = _STORED[dtype]
        unknown = values.isfinite().logical_not_()
        if not math.isnan(nodata):
            values.round_()  # half to even
        values.clamp_(low, high).masked_fill_(unknown, nodata)
        if dtype == "uint16":
            values = values.to(torch.int32)  # torch supports little more than copies for uint16
        return values.to(getattr(torch, dtype))

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> RasterOutput:
        """Build a `RasterOutput` without georeference from the values [bands, height, width] of one request."""
        asked_output(self, "regression", params)
        tensor = only_tensor(raw, "decoded values must be one tensor", DecodeError)
        array, dtype = own_array(tensor), self._sent_dtype(params)
        if array.dtype != dtype or array.ndim != _AXES - 1:
            raise not_of_reduce(
                f"values must come as {dtype} [bands, height, width] from reduce, got {describe(tensor)}"
            )
        return self._values(array)

    def decode_tiles(self, raw: Any, params: OutputParams) -> Sequence[RasterOutput] | None:
        """Build the rasters of several tiles at once. Return None if a subclass overrides `decode`."""
        return decoded_tiles(self, raw, params) if has_method(self, RegressionProcessor.decode) else None

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join the tiles of a scene. Where they overlap, values are averaged before they are rounded."""
        asked_output(self, "regression", params)
        if isinstance(parts, Parts) and self._sent_dtype(params.of_part()) != self._dtype:
            return parts.mosaic(params, self._finished)
        return super().assemble(parts, params)

    def _finished(self, values: RasterOutput) -> RasterOutput:
        if values.array.dtype.kind != "f":
            return values  # a subclass's own integers
        low, high, nodata = _STORED[self._dtype]
        numbers = np.clip(np.rint(values.array), low, high)  # half to even
        np.copyto(numbers, nodata, where=np.isnan(numbers))
        return self._values(numbers.astype(self._dtype))

    def _values(self, array: NDArray[Any]) -> RasterOutput:
        units = (self._units,) * len(array) if isinstance(self._units, str) else self._units
        nodata = _STORED[array.dtype.name][2]
        return RasterOutput(array, nodata=nodata, band_names=self._band_names, units=units)

    def _sent_dtype(self, params: OutputParams) -> str:
        return "float32" if params.blends and np.dtype(self._dtype).kind in "iu" else self._dtype

    def _checked_values(self, values: torch.Tensor) -> torch.Tensor:
        shaped = values.ndim in (_AXES - 1, _AXES) and 0 not in values.shape[1:]
        if not shaped or not values.is_floating_point():
            raise ReduceError(f"{_TAKES}, got {describe(values)}")
        if values.ndim < _AXES:
            values = values.unsqueeze(1)
        for option, count in self._entries.items():
            if count != values.shape[1]:
                raise ReduceError(
                    f"{option} has {count} entries, the model emits {values.shape[1]} bands; give one entry a band"
                )
        return values


def _checked_numbers(option: str, value: Any) -> tuple[float, ...]:
    numbers = value if isinstance(value, list | tuple) else [value]
    if not numbers or not all(_is_number(number) for number in numbers):
        raise OptionError(f"{option} must be a number or a list of numbers, one a band, all finite, got {value!r}")
    return tuple(float(number) + 0.0 for number in numbers)


def _is_number(number: object) -> bool:
    """Return whether a value is a finite number that float32 can hold."""
    return isinstance(number, int | float) and not isinstance(number, bool) and abs(number) <= _LARGEST


def _checked_units(units: object) -> str | tuple[str | None, ...]:
    if units is None:
        return ()
    if isinstance(units, str) and units:
        return units
    texts = units if isinstance(units, list | tuple) else ()
    if not texts or not all(unit is None or (isinstance(unit, str) and unit) for unit in texts):
        raise OptionError(f'units must be text such as "Mg/ha", or a list with one a band, got {units!r}')
    return tuple(texts)


def _checked_clip(clip: object) -> tuple[float | None, float | None]:
    if not isinstance(clip, list | tuple) or len(clip) != 2 or not all(end is None or _is_number(end) for end in clip):
        raise OptionError(f"clip must be [lowest, highest], finite numbers or null for an open side, got {clip!r}")
    low, high = (None if end is None else float(end) + 0.0 for end in clip)
    if low is None and high is None:
        raise OptionError("clip has two open sides; leave it out")
    if low is not None and high is not None and low >= high:
        raise OptionError(f"clip must have the lower end first, got {clip!r}")
    return low, high
