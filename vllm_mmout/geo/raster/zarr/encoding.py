"""Read from the metadata of a Zarr array how its chunks are stored: shape, data type, codecs, shards, file names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.zarr.nodes import Node, mapping

_LARGEST: Final = 2**29
"""Largest accepted size of a decoded chunk in bytes. A chunk is held in memory as a whole."""
_MOST_CHUNKS: Final = 2**20
"""Largest accepted number of chunks in a shard. The shard's index takes 16 bytes per chunk."""
_NUMBERS: Final = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    }
)
"""Numeric data types of Zarr 3, which have the same names in NumPy."""

Codec: TypeAlias = tuple[str, Mapping[str, Any]]
"""Codec of a Zarr array: its name and its configuration."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Description of how the chunks of an array are stored: shape, data type and codecs."""

    shape: tuple[int, ...]
    """Number of elements along each axis of a chunk."""
    dtype: np.dtype[Any] | None
    """Dtype of the stored elements, or None for strings of variable length."""
    codecs: tuple[Codec, ...]
    """Codecs that turn bytes into other bytes, such as compressors, in the order of encoding."""
    order: tuple[int, ...] = ()
    """Storage order of the axes of a chunk, such as (1, 0). Empty if the axes are not transposed."""
    shards: ShardIndex | None = None
    """Layout of the shards, or None if each file holds a single chunk."""

    @property
    def nbytes(self) -> int:
        """Size of a decoded chunk in bytes, or 0 for strings."""
        return 0 if self.dtype is None else math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Layout of the shards of an array. A shard is a file with several chunks and an index of the chunks."""

    shape: tuple[int, ...]
    """Number of elements along each axis of a shard."""
    grid: tuple[int, ...]
    """Number of chunks along each axis of a shard."""
    checked: bool
    """Whether the index of a shard ends with a checksum."""
    at_end: bool
    """Whether the index of a shard is at the end of the shard's file, not at its beginning."""


def encoding_of(node: Node) -> Encoding:
    """Read how the chunks of an array are stored. Raise InputError if the format is not supported."""
    encoding = _of_version_3(node) if node.version == 3 else _of_version_2(node)
    if len(encoding.shape) != len(node.shape):
        raise node.damaged(f"it has {len(node.shape)} axes, and its chunks have {len(encoding.shape)}")
    if encoding.nbytes > _LARGEST:
        raise InputError(
            f"{node.name} is stored in chunks of {' x '.join(map(str, encoding.shape))}, {encoding.nbytes >> 20} MiB"
            f" decoded, {_LARGEST >> 20} MiB at most; store it in smaller chunks"
        )
    return encoding


def _of_version_2(node: Node) -> Encoding:
    stated = node.stated
    chunks = node.integers("chunks", stated.get("chunks"), least=1)
    filters = _codecs(node, stated.get("filters") or [], "id")
    text = stated.get("dtype") == "|O" and [name for name, _ in filters] == ["vlen-utf8"]
    if filters and not text:
        raise unsupported(node, [name for name, _ in filters])
    compressor = stated.get("compressor")
    codecs = () if compressor is None else tuple(_codecs(node, [compressor], "id"))
    order = tuple(reversed(range(len(chunks)))) if stated.get("order") == "F" else ()
    return Encoding(chunks, None if text else _numpy_dtype(node, stated.get("dtype")), codecs, order)


def _numpy_dtype(node: Node, text: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype(text) if isinstance(text, str) else None
    except (SyntaxError, TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.kind not in "biufcU" or not dtype.itemsize:
        raise node.damaged(f"its data type is {text!r:.100}, which is not of numbers")
    return dtype


def _of_version_3(node: Node) -> Encoding:
    stated = node.stated
    grid = mapping(stated.get("chunk_grid"))
    if grid.get("name") != "regular":
        raise node.damaged(f"its chunk grid is {grid.get('name')!r:.100}, not regular")
    chunks = node.integers("chunk_shape", mapping(grid.get("configuration")).get("chunk_shape"), least=1)
    codecs = _codecs(node, stated.get("codecs"))
    return _of_codecs(node, chunks, codecs, _dtype_3(node))


def _dtype_3(node: Node) -> np.dtype[Any] | None:
    """Return the dtype of a Zarr 3 array in native byte order, or None for strings of variable length."""
    stated = node.stated.get("data_type")
    if stated == "string":
        return None
    if isinstance(stated, str) and stated in _NUMBERS:
        return np.dtype(stated)
    length = mapping(mapping(stated).get("configuration")).get("length_bytes")
    if mapping(stated).get("name") == "fixed_length_utf32" and type(length) is int and 4 <= length < 2**16:
        return np.dtype(f"U{length // 4}")
    raise node.damaged(f"its data type is {stated!r:.100}, which is not of numbers")


def _of_codecs(node: Node, chunks: tuple[int, ...], codecs: Sequence[Codec], dtype: np.dtype[Any] | None) -> Encoding:
    axes: tuple[int, ...] = ()
    for number, (name, options) in enumerate(codecs):
        rest = tuple(codecs[number + 1 :])
        if name == "transpose" and not axes:
            axes = node.integers("the order of transpose", options.get("order"), least=0)
            if sorted(axes) != list(range(len(chunks))):
                raise node.damaged(f"the order of transpose is {axes}")
        elif name == "bytes" and dtype is not None:
            return Encoding(chunks, dtype.newbyteorder(">" if options.get("endian") == "big" else "<"), rest, axes)
        elif name == "vlen-utf8" and dtype is None and not axes:
            return Encoding(chunks, None, rest)
        elif name == "sharding_indexed" and not axes and not rest:
            return _of_shards(node, chunks, options, dtype)
        else:
            raise unsupported(node, [name])
    raise node.damaged("it has no codec that yields bytes")


def _of_shards(node: Node, shard: tuple[int, ...], options: Mapping[str, Any], dtype: np.dtype[Any] | None) -> Encoding:
    chunks = node.integers("chunk_shape of the shards", options.get("chunk_shape"), least=1)
    if len(chunks) != len(shard) or any(whole % part for whole, part in zip(shard, chunks, strict=True)):
        raise node.damaged(f"shards of {shard} do not consist of chunks of {chunks}")
    index = _codecs(node, options.get("index_codecs"))
    names = [name for name, _ in index]
    if names not in (["bytes"], ["bytes", "crc32c"]) or index[0][1].get("endian", "little") != "little":
        raise unsupported(node, names)
    inner = _of_codecs(node, chunks, _codecs(node, options.get("codecs")), dtype)
    if inner.shards is not None or dtype is None:
        raise unsupported(node, ["sharding_indexed"])
    grid = tuple(whole // part for whole, part in zip(shard, chunks, strict=True))
    if math.prod(grid) > _MOST_CHUNKS:
        raise node.damaged(f"a shard has {math.prod(grid)} chunks")
    at_end = options.get("index_location", "end") == "end"
    return Encoding(chunks, inner.dtype, inner.codecs, inner.order, ShardIndex(shard, grid, len(names) == 2, at_end))


def _codecs(node: Node, json_codecs: Any, name_key: str = "name") -> list[Codec]:
    """Return the name and configuration of each codec in ``json_codecs``, a list from a Zarr node's metadata.

    ``name_key`` is the key of a codec's name: "name" in Zarr 3, "id" in Zarr 2.
    """
    if not isinstance(json_codecs, list):
        raise node.damaged(f"its codecs are {json_codecs!r:.100}")
    codecs: list[Codec] = []
    for each in json_codecs:
        name = each if isinstance(each, str) else mapping(each).get(name_key)
        if not isinstance(name, str):
            raise node.damaged(f"a codec is {each!r:.100}")
        codecs.append((name, mapping(each) if name_key == "id" else mapping(mapping(each).get("configuration"))))
    return codecs


def unsupported(node: Node, names: Sequence[str]) -> InputError:
    """Return the error for codecs that are not supported."""
    return InputError(
        f"{node.name} is stored with {', '.join(names)}, which cannot be read here; store it with zstd, blosc, gzip,"
        " zlib or lz4, or without compression"
    )


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """File names of the chunks of an array."""

    start: str
    separator: str
    zarr_2_style: bool = field(default=True)
    """Whether file names follow Zarr 2: "0.1" instead of "c/0/1", and "0" instead of "c" for a scalar array."""

    def of(self, index: Sequence[int]) -> str:
        """Return the file name of a chunk or shard. ``index`` is its position along each axis of the chunk grid."""
        numbers = self.separator.join(map(str, index))
        if not index:
            return f"{self.start}0" if self.zarr_2_style else self.start
        return f"{self.start}{'' if self.zarr_2_style else self.separator}{numbers}"


def chunk_keys(node: Node) -> ChunkKeys:
    """Return the object that makes the file names of an array's chunks."""
    start = f"{node.path}/" if node.path else ""
    if node.version == 2:
        separator, named = node.stated.get("dimension_separator", "."), "v2"
    else:
        encoding = mapping(node.stated.get("chunk_key_encoding"))
        named = encoding.get("name", "default")
        separator = mapping(encoding.get("configuration")).get("separator", "/" if named == "default" else ".")
    if named not in ("default", "v2") or separator not in ("/", "."):
        raise node.damaged(f"the names of its chunks are {named!r:.100} with {separator!r:.100}")
    return ChunkKeys(start, separator) if named == "v2" else ChunkKeys(f"{start}c", separator, zarr_2_style=False)
