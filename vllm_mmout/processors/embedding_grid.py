"""`EmbeddingGridProcessor`, which returns one embedding vector for each patch of the input, as a raster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import msgspec
import numpy as np

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.embedding import halved, tensor_named, unit_vectors
from vllm_mmout.processors.option_values import checked_switch
from vllm_mmout.processors.parts import Parts
from vllm_mmout.processors.raw import (
    asked_output,
    decoded_tiles,
    describe,
    has_method,
    not_of_reduce,
    only_tensor,
    own_array,
)

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw
    from vllm_mmout.processors.part import Part

_TAKES = (
    "a grid of embeddings is made of floating-point tokens [n, tokens, dim] or a feature map [n, dim, rows, columns]"
)
_TOKENS, _MAP = 3, 4  # numbers of axes
_DTYPES = ("float32", "float16", "int8")
_DATES = ("mean", "each")
_HIDDEN: Final = "last_hidden_state"
_NODATA = -128  # of int8
_MOST = 127
"""Largest absolute value that a component of an embedding has in an int8 raster. The value -128 is nodata."""
_STEPS = 4
"""Number of exponent steps that double the scale of an int8 pixel. The scale is 2 ** (exponent / 4)."""
SCALE_BAND: Final = "scale_exponent"
"""Name of the band that holds the exponent of each pixel's scale, 2 ** (exponent / 4). It is the last band of int8
rasters without the option ``scale``."""
PATCH_ITEM: Final = "MMOUT_PATCH_SIZE"
DATES_ITEM: Final = "MMOUT_EMBEDDING_DATES"
"""Name of the raster's metadata item that tells how the embeddings of several dates were combined."""
SCALE_ITEM: Final = "MMOUT_EMBEDDING_SCALE"
"""Name of the metadata item with the formula that converts int8 pixels to embeddings. Only rasters with a scale for
each pixel have the item."""
_PER_PIXEL = f"component = pixel * 2 ** ({SCALE_BAND} / {_STEPS}); {SCALE_BAND} is the last band"


class EmbeddingGridProcessor(OutputProcessor):
    """Processor for backbones. It returns a raster of patch embeddings with one pixel for each patch of the input.

    The model returns tokens or a feature map. Tokens are prefix tokens (class token, registers), then the patches row
    by row.

    A pixel of the result is a patch, and a band is a component of the vectors. The upper left corner of the result is
    that of the input, and a patch at the lower or right edge may reach beyond the input. Tiles begin at multiples of
    the patch. Where tiles overlap, nothing is averaged: a patch is taken from the tile whose centre is nearest, which
    has the most context. A patch without a valid pixel is nodata, and so is a vector with NaN or an infinity.

    `reduce` computes everything in float32 on the device, and only the values to be stored are sent.

    Args:
        patch_size: side of a patch in pixels of the input. By default "patch_size" in the model's config.json.
        prefix_tokens: number of tokens before those of the patches. By default "prefix_tokens" in config.json, else 0.
        token_dates: number of dates whose tokens the model returns, all tokens of the first date before those of the
            second. By default "token_dates" in config.json, else 1.
        dates: "mean" for the mean of a patch's vectors over the dates, or "each" for the vectors of all dates, whose
            bands are those of the first date, then those of the second.
        tensor: name of the output to use if the model emits several. By default "last_hidden_state".
        normalize: divide each vector (of each date) by its length (L2), so that dot products are cosines.
        dtype: "float16" (nodata NaN), "float32" (NaN) or "int8" (-128).
        scale: size of a step of int8, one for all bands or one for each. Files state it as the bands' scale. By default
            each pixel has its own scale, which a last band holds as an exponent.

    Raises:
        OptionError: an option is malformed, or the patch size is unknown.

    """

    name: ClassVar[str] = "embedding_grid"
    modality: ClassVar[str] = "raster"
    outputs: ClassVar[tuple[str, ...]] = ("embeddings",)

    def __init__(
        self,
        *,
        patch_size: int | None = None,
        prefix_tokens: int | None = None,
        token_dates: int | None = None,
        dates: str = "mean",
        tensor: str | None = None,
        normalize: bool = False,
        dtype: str = "float16",
        scale: float | Sequence[float] | None = None,
    ) -> None:
        self.output_stride = _checked_patch(patch_size)
        self._prefix = _checked_count("prefix_tokens", prefix_tokens, least=0)
        self._token_dates = _checked_count("token_dates", token_dates, least=1)
        if dates not in _DATES:
            raise OptionError(f"dates must be {' or '.join(_DATES)}, got {dates!r}")
        self._dates = dates
        if tensor is not None and (not isinstance(tensor, str) or not tensor):
            raise OptionError(f"tensor must be the name of an output of the model, or left out, got {tensor!r}")
        if dtype not in _DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
        if scale is not None and dtype != "int8":
            raise OptionError(f"scale is for the dtype int8, and the dtype is {dtype}; leave scale out")
        self._tensor = tensor
        self._normalize = checked_switch("normalize", normalize)
        self._dtype = dtype
        self._scale = None if scale is None else _checked_scale(scale)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create an instance. Options that are not set default to the values in the model's ``config.json``."""
        names = ("patch_size", "prefix_tokens", "token_dates")
        known = {name: config[name] for name in names if config.get(name) is not None}
        return cls(**{**known, **options})

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Arrange the embedding vectors of all patches as rasters [n, bands, rows, columns].

        The rasters have the dtype of the option ``dtype``. Raises ReduceError if the output has a wrong shape or dtype,
        or a component does not fit the dtype.
        """
        import torch

        asked_output(self, self.name, params)
        # One request at a time, since the last bits of a sum depend on the memory layout.
        return torch.stack([self._stored(grid) for grid in self._grids(output)])

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> RasterOutput:
        """Build a `RasterOutput` without georeference from the bands [bands, rows, columns] of one request."""
        asked_output(self, self.name, params)
        tensor = only_tensor(raw, "decoded embeddings must be one tensor", DecodeError)
        array = own_array(tensor)
        if array.dtype != self._dtype or array.ndim != _MAP - 1:
            raise not_of_reduce(f"embeddings must come as {self._dtype} [bands, rows, columns] from reduce", tensor)
        quantised = self._dtype == "int8"
        per_pixel = quantised and self._scale is None
        metadata = {PATCH_ITEM: str(self.output_stride)}
        groups = self._token_dates if self._dates == "each" else 1
        size = (len(array) - per_pixel) // groups
        ends = [""] if groups == 1 else [f"_date_{number}" for number in range(1, groups + 1)]
        names = [f"embedding_{number}{end}" for end in ends for number in range(size)]
        if self._token_dates > 1:
            metadata[DATES_ITEM] = (
                f"mean of {self._token_dates} dates"
                if groups == 1
                else f"{size} bands for each of {groups} dates, the first date first"
            )
        if per_pixel:
            metadata[SCALE_ITEM] = _PER_PIXEL
        scales = self._scale or ()
        return RasterOutput(
            array,
            nodata=_NODATA if quantised else math.nan,
            band_names=[*names, SCALE_BAND] if per_pixel else names,
            scales=scales * len(array) if len(scales) == 1 else scales,
            nearest=per_pixel,  # pixels of different scales must not be averaged
            metadata=metadata,
        )

    def decode_tiles(self, raw: Any, params: OutputParams) -> Sequence[RasterOutput] | None:
        """Build the rasters of several tiles at once, or return None if a subclass overrides ``decode``."""
        return decoded_tiles(self, raw, params) if has_method(self, EmbeddingGridProcessor.decode) else None

    def assemble(self, parts: Iterator[Part], params: OutputParams) -> Any:
        """Join the tiles of a scene. Where they overlap, each patch is taken from the tile whose centre is nearest."""
        if isinstance(parts, Parts):
            return parts.mosaic(msgspec.structs.replace(params, blend="none"))
        return super().assemble(parts, params)

    def _grids(self, output: Raw) -> torch.Tensor:
        """Return the patch embeddings of ``n`` requests as grids: one tensor [n, dates, dim, rows, columns]."""
        features = tensor_named(output, self._tensor, _TAKES, default=_HIDDEN)
        if features.ndim not in (_TOKENS, _MAP) or not features.is_floating_point() or 0 in features.shape[1:]:
            pooled = (
                "; the model pools its patches to one vector, which must be switched off" if features.ndim == 2 else ""
            )
            raise ReduceError(f"{_TAKES}, got {describe(features)}{pooled}")
        dates = self._token_dates
        if features.ndim == _MAP:
            if dates > 1:
                raise ReduceError(
                    f"the model emits {describe(features)}, a feature map without dates, and token_dates is {dates};"
                    " return the tokens of all dates, or set token_dates to 1 if the model joins its dates"
                )
            return features.unsqueeze(1)
        patches = features.shape[1] - self._prefix
        side = math.isqrt(max(patches, 0) // dates)
        if not side or dates * side**2 != patches:
            squares = f"{dates} squares" if dates > 1 else "square"
            raise ReduceError(
                f"the model emits {describe(features)}, of which {self._prefix} tokens are prefix tokens, and the other"
                f" {patches} are no {squares} of patches; set the option prefix_tokens to the number of class tokens"
                " and registers, and token_dates to the number of dates, or return a feature map [n, dim, rows,"
                " columns] from the model"
            )
        tokens = features[:, self._prefix :]
        rows = tokens.reshape(len(tokens), dates, side * side, tokens.shape[2]).transpose(2, 3)
        return rows.reshape(*rows.shape[:3], side, side)

    def _stored(self, grid: torch.Tensor) -> torch.Tensor:
        """Convert the embedding vectors [dates, dim, rows, columns] of one request to bands of the result."""
        import torch

        vectors = grid.to(torch.float32).contiguous()
        if self._dates == "mean":
            vectors = vectors.mean(dim=0, keepdim=True)
        if self._normalize:
            vectors = unit_vectors(vectors, dim=1)
        vectors = vectors.flatten(0, 1)
        invalid = ~vectors.isfinite().all(dim=0)
        if self._dtype == "int8":
            bands = self._pixel_steps(vectors, invalid) if self._scale is None else self._band_steps(vectors, invalid)
            return bands.masked_fill_(invalid, _NODATA).to(torch.int8)
        vectors = vectors.masked_fill(invalid, math.nan)
        return halved(vectors) if self._dtype == "float16" else vectors

    def _pixel_steps(self, vectors: torch.Tensor, invalid: torch.Tensor) -> torch.Tensor:
        """Quantize each pixel's vector with its own scale, 2 ** (exponent / 4). Append the exponents as a last band."""
        import torch

        largest = vectors.masked_fill(invalid, 0).abs().amax(dim=0)
        exponent = (_STEPS * torch.log2(largest.to(torch.float64) / _MOST)).ceil()
        if (exponent > _MOST).any():
            raise ReduceError(
                f"an embedding has a component of size {float(largest.max()):g}, and the largest scale of a pixel holds"
                f" {_MOST * 2 ** (_MOST / _STEPS):g}; set the option normalize to true, or dtype to float32"
            )
        exponent = exponent.clamp_min(-_MOST)  # a zero vector has an exponent of minus infinity
        steps = (vectors / torch.exp2(exponent / _STEPS)).round().clamp(-_MOST, _MOST)
        return torch.cat([steps, exponent.unsqueeze(0)])

    def _band_steps(self, vectors: torch.Tensor, invalid: torch.Tensor) -> torch.Tensor:
        """Divide each band of ``vectors`` [dim, rows, columns] by the option ``scale``, and round to integers."""
        import torch

        scale = torch.tensor(self._scale, dtype=torch.float32, device=vectors.device).reshape(-1, 1, 1)
        if len(scale) not in (1, len(vectors)):
            raise ReduceError(
                f"scale has {len(scale)} entries, the model emits vectors of {len(vectors)}; give one entry a component"
            )
        steps = (vectors / scale).masked_fill(invalid, 0).round()
        largest = steps.abs().amax()
        if largest > _MOST:
            raise ReduceError(
                f"an embedding has a component of {float(largest):g} steps of its scale, and int8 holds {_MOST}; set"
                f" scale at least {float(largest) / _MOST:.3g} times as large, or leave it out to have a scale for each"
                " pixel"
            )
        return steps


def _checked_patch(patch_size: object) -> int:
    """Return the option ``patch_size`` as one integer. A pair of equal sides, such as [16, 16], is accepted too."""
    if isinstance(patch_size, list | tuple) and len(set(patch_size)) == 1:
        patch_size = patch_size[0]
    if patch_size is None:
        raise OptionError(
            "patch_size is not known: set it as an option of embedding_grid, or in the model's config.json, to the side"
            " in pixels of the square that becomes one vector"
        )
    if isinstance(patch_size, bool) or not isinstance(patch_size, int) or patch_size < 1:
        raise OptionError(f"patch_size must be the side of square patches, a number of pixels, got {patch_size!r}")
    return patch_size


def _checked_count(name: str, count: object, *, least: int) -> int:
    """Return ``count``, the value of the option ``name``. If ``count`` is None, return the option's minimum.

    Raise OptionError if ``count`` is not an integer, or is below the minimum ``least``.
    """
    if count is None:
        return least
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise OptionError(f"{name} must be a whole number, {least} or more, got {count!r}")
    return count


def _checked_scale(scale: object) -> tuple[float, ...]:
    numbers: Sequence[Any] = scale if isinstance(scale, list | tuple) else [scale]
    are_numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    if not numbers or not are_numbers or not all(0 < number <= np.finfo(np.float32).max for number in numbers):
        raise OptionError(f"scale must be a number above 0, or a list with one for each component, got {scale!r}")
    return tuple(float(number) for number in numbers)
