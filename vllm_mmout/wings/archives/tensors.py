"""Schema of tensors in torch.export's files: names, sizes, dtypes and stored bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal, TypeAlias, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from vllm_mmout.wings.archives.expressions import check_expression

Name: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]
NameOrNone: TypeAlias = Annotated[str, Meta(pattern=r"\A([A-Za-z_][A-Za-z0-9_]*)?\Z")]
Path: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*\Z")]
Float: TypeAlias = float | Literal["Infinity", "-Infinity", "NaN"]
Word: TypeAlias = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_ .,:;>+-]*\Z", max_length=200)]


STRIDED: Final = 7
"""Code of the dense (strided) memory layout in torch.export's schema."""
_ITEM_BYTES: Final = {
    **dict.fromkeys((1, 2, 12, 29, 30, 31, 32, 33), 1), **dict.fromkeys((3, 6, 13, 28), 2),
    **dict.fromkeys((4, 7, 9, 34), 4), **dict.fromkeys((5, 8, 10, 35), 8), 11: 16,
}  # fmt: skip
"""Bytes per element, by dtype code of torch.export's schema."""


class Union(Struct, omit_defaults=True):
    """Base class of tagged unions. Exactly one field of an instance is set."""

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not UNSET for name in self.__struct_fields__) != 1:
            raise ValueError(f"{type(self).__name__} of an unsupported kind")


class Expression(Struct):
    """Arithmetic expression, such as ``2*s0``, for the variable size of a tensor's axis."""

    expr_str: str
    hint: dict[Literal["as_int", "as_bool", "as_float"], int | float | bool] | None = None

    def __post_init__(self) -> None:
        check_expression(self.expr_str)


class Number(Union):
    """An integer, a float or a bool."""

    as_int: int | UnsetType = UNSET
    as_float: Float | UnsetType = UNSET
    as_bool: bool | UnsetType = UNSET


class Size(Number):
    """Size of an axis: a fixed number, or an expression of symbols."""

    as_expr: Expression | UnsetType = UNSET


class Device(Struct):
    """Device of a tensor. The stored device is ignored: the program is loaded on the CPU, and moved later."""

    type: str
    index: int | None = None

    def __post_init__(self) -> None:
        self.type, self.index = "cpu", None


class TensorMeta(Struct):
    """Shape, dtype and layout of a tensor."""

    dtype: int
    sizes: list[Size]
    requires_grad: bool
    device: Device
    strides: list[Size]
    storage_offset: Size
    layout: Literal[7]
    """Memory layout of the tensor. It must be `STRIDED` (dense). Sparse layouts are refused."""

    @staticmethod
    def numbers(sizes: Iterable[Size]) -> list[int]:
        """Return sizes as integers. Raise ValueError if a size is an expression or negative."""
        numbers = [size.as_int for size in sizes]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError("a weight whose size is not a number")
        return cast("list[int]", numbers)


class Payload(Struct):
    """Weight or constant that is stored in an archive, with its file and memory layout."""

    path_name: Annotated[str, Meta(pattern=r"\A(weight|tensor)_[0-9]+\Z")]
    is_param: bool
    use_pickle: bool
    tensor_meta: TensorMeta | None

    def __post_init__(self) -> None:
        if self.use_pickle:
            raise ValueError("a pickled object")

    @property
    def nbytes(self) -> int:
        """Number of bytes that the tensor needs in its file. Raises ValueError for unknown sizes or dtypes."""
        meta = self.tensor_meta
        if meta is None or meta.dtype not in _ITEM_BYTES:
            raise ValueError(f"{self.path_name} has an unsupported dtype")
        sizes, strides = (meta.numbers(list_) for list_ in (meta.sizes, meta.strides))
        (start,) = meta.numbers([meta.storage_offset])
        if 0 in sizes:
            return 0
        extent = start + 1 + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
        return extent * _ITEM_BYTES[meta.dtype]


class Payloads(Struct):
    """All weights, or all constants, of a program by name."""

    config: dict[Path, Payload]
