"""Hypothesis strategies for model outputs: torch tensors with difficult values and memory layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from hypothesis import strategies as st

Axis: TypeAlias = "int | str | tuple[int, int]"
"""Length of an axis of generated tensors: a number, a name (axes of the same name have equal lengths), or (smallest,
largest)."""
Dtypes: TypeAlias = "str | torch.dtype | Sequence[str | torch.dtype]"
"""Dtype of randomly generated tensors, such as "float32" or ``torch.float32``, or several dtypes to choose from."""

FLOATING = ("float32", "float16", "bfloat16")
"""Floating-point dtypes that models use. They are the default dtypes of randomly generated tensors."""

_REQUESTS = (1, 4)
_LENGTHS = (1, 6)
_MOST_VALUES = 6
_LAYOUTS = ("contiguous", "transposed", "strided", "shifted", "repeated")


def tensors(
    shape: Sequence[Axis],
    dtype: Dtypes = FLOATING,
    *,
    lengths: Mapping[str, int | tuple[int, int]] | None = None,
    elements: st.SearchStrategy[float] | None = None,
    layouts: bool = True,
) -> st.SearchStrategy[torch.Tensor]:
    """Generate random tensors like the outputs that a model returns for a batch of requests, to test a processor.

    If a test fails, hypothesis looks for the simplest tensor that fails as well: small, contiguous and all zeros.

    Values are one of three kinds: a few different ones, so that there are ties, with NaN, infinities, -0.0, subnormals
    and the dtype's largest; noise, in which values rarely repeat; noise with a few extremes in it.

    Args:
        shape: one entry for each axis, axis 0 being the requests: ``("n", 2, "height", (1, 40))``.
        dtype: dtypes to choose from, the simplest first.
        lengths: lengths of named axes, fixed or from the smallest to the largest; by default 1 to 4 for the name of
            axis 0, and 1 to 6 for others. 0 is allowed.
        elements: strategy for the values, instead of those above: ``st.floats(0, 1)`` for probabilities.
        layouts: whether tensors may have other memory layouts than contiguous: transposed, with gaps, inside a larger
            tensor, or one request's memory repeated for all of them (``expand``).

    """
    return model_outputs(
        {"": shape},
        {"": dtype},
        lengths=lengths,
        elements=None if elements is None else {"": elements},
        layouts=layouts,
    ).map(lambda output: output[""])


@st.composite
def model_outputs(
    draw: st.DrawFn,
    shapes: Mapping[str, Sequence[Axis]],
    dtypes: Mapping[str, Dtypes] | None = None,
    *,
    lengths: Mapping[str, int | tuple[int, int]] | None = None,
    elements: Mapping[str, st.SearchStrategy[float]] | None = None,
    layouts: bool = True,
) -> dict[str, torch.Tensor]:
    """Draw a dict of tensors with the same batch size, such as a model's boxes and scores for several requests.

    Args:
        draw: passed by hypothesis.
        shapes: maps each tensor's name to its shape, as in `tensors`; an axis name has one length in all tensors.
        dtypes: maps each tensor's name to its dtypes, as in `tensors`; `FLOATING` for names not listed.
        lengths: see `tensors`.
        elements: maps each tensor's name to the strategy for its values, as in `tensors`.
        layouts: see `tensors`.

    """
    sizes: dict[Any, int] = {}
    drawn = {}
    for name, shape in shapes.items():
        lengths_of = [_length(draw, axis, sizes, lengths or {}, first=not place) for place, axis in enumerate(shape)]
        dtype = _dtype(draw(st.sampled_from(_choices((dtypes or {}).get(name, FLOATING)))))
        values = (elements or {}).get(name)
        tensor = _filled(draw, tuple(lengths_of), dtype, values)
        drawn[name] = _laid_out(draw(st.sampled_from(_LAYOUTS)), tensor) if layouts else tensor
    return drawn


def _length(
    draw: st.DrawFn,
    axis: Axis,
    sizes: dict[Any, int],
    lengths: Mapping[str, int | tuple[int, int]],
    *,
    first: bool,
) -> int:
    span = lengths.get(axis, _REQUESTS if first else _LENGTHS) if isinstance(axis, str) else axis
    low, high = (span, span) if isinstance(span, int) else span
    key = 0 if first else axis
    if not isinstance(key, tuple) and (first or isinstance(axis, str)):
        if key not in sizes:
            sizes[key] = draw(st.integers(low, high))
            sizes.setdefault(axis, sizes[key])
        return sizes[key]
    return draw(st.integers(low, high))


def _choices(dtypes: Dtypes) -> Sequence[str | torch.dtype]:
    return tuple(dtypes) if isinstance(dtypes, list | tuple) else (dtypes,)  # type: ignore[return-value] # see _dtype


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    torch_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(torch_dtype, torch.dtype):
        raise TypeError(f"dtype must be one of torch's, as float32 or uint8, got {dtype!r}")
    return torch_dtype


def extremes(dtype: torch.dtype) -> list[float]:
    """Return values of a dtype that often cause errors, such as NaN and the maximum, with the simplest first."""
    if dtype == torch.bool:
        return [0, 1]
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return [0, 1, limits.max, limits.min, limits.max - 1]
    limit = torch.finfo(dtype)
    smallest = limit.smallest_normal * limit.eps  # the smallest subnormal
    finite = [0.0, 1.0, -1.0, -0.0, 0.5, limit.max, limit.min, limit.smallest_normal, smallest, -smallest]
    return [*finite, math.nan, math.inf, -math.inf]


def _filled(
    draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, elements: st.SearchStrategy[float] | None
) -> torch.Tensor:
    kind = "few" if elements is not None else draw(st.sampled_from(["few", "noise", "noise and few"]))
    element = st.sampled_from(extremes(dtype)) if elements is None else elements
    # Hypothesis takes fewer draws for simpler: noise needs more draws than two different values.
    values = _numbers(draw(st.lists(element, min_size=1 if kind == "few" else 4, max_size=_MOST_VALUES)), dtype)
    # Each byte of the pattern selects the value at a place. In noise, larger bytes leave the noise unchanged.
    pattern = draw(st.binary(min_size=1, max_size=48))
    size = math.prod(shape)
    chosen = torch.frombuffer(bytearray(pattern), dtype=torch.uint8).to(torch.int64)
    chosen = chosen.repeat(-(-size // len(pattern)))[:size].reshape(shape)
    few = values[chosen % len(values)]
    if kind == "few":
        return few
    noise = _noise(draw(st.integers(0, 2**16)), draw(st.sampled_from([1.0, 30.0])), shape, dtype)
    return noise if kind == "noise" else torch.where(chosen < len(values), few, noise)


def _noise(seed: int, scale: float, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    if not dtype.is_floating_point:
        return torch.randint(0, 100, shape, generator=generator).to(dtype)
    return (scale * torch.randn(shape, generator=generator)).to(dtype)


def _numbers(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """Convert values to a tensor. Floats are converted via float64, so that narrow dtypes round correctly."""
    if dtype.is_floating_point or dtype == torch.bool:
        return torch.tensor(values, dtype=torch.float64).to(dtype)
    return torch.tensor(values, dtype=dtype)


def _laid_out(layout: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in another memory layout: transposed, strided, shifted or repeated.

    The layout "repeated" changes the values: all requests share the memory of the first request.
    """
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(1, -1).contiguous().transpose(1, -1)
    if layout == "strided":
        return torch.stack([tensor, torch.zeros_like(tensor)], dim=-1)[..., 0]
    if layout == "shifted" and tensor.dim():
        return torch.cat([torch.zeros_like(tensor[:1]), tensor])[1:]
    if layout == "repeated" and tensor.dim() and len(tensor):
        return tensor[:1].expand(tensor.shape)
    return tensor
