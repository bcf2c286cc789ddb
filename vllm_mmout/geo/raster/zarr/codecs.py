"""Decode the chunks of Zarr arrays into buffers of limited size."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.zarr.encoding import Encoding, unsupported

if TYPE_CHECKING:
    from vllm_mmout.geo.raster.zarr.nodes import Node

_TEXT_BYTES: Final = 2**20
"""Largest accepted size in bytes of a decoded chunk of strings."""
_CHECKSUM: Final = 4


def _lz4(data: bytes, out: int) -> bytes:
    return bytes(imagecodecs.lz4_decode(data, header=True, out=out))


_DECODERS: Final[Mapping[str, Callable[..., bytes | bytearray]]] = {
    "zstd": imagecodecs.zstd_decode,
    "blosc": imagecodecs.blosc_decode,
    "gzip": imagecodecs.gzip_decode,
    "zlib": imagecodecs.zlib_decode,
    "lz4": _lz4,
}
"""Decoder of each codec, by codec name. A decoder's argument ``out`` is the maximum size of the result in bytes."""


def check_codecs(node: Node, encoding: Encoding) -> None:
    """Raise InputError if ``encoding`` has a codec that is not supported."""
    unknown = [name for name, _ in encoding.codecs if name not in _DECODERS and name != "crc32c"]
    if unknown:
        raise unsupported(node, unknown)


def max_encoded_bytes(encoding: Encoding) -> int:
    """Return the largest accepted size of an encoded chunk in bytes.

    The limit is above the size of a decoded chunk, because some codecs add headers.
    """
    return 2 * (encoding.nbytes or _TEXT_BYTES) + 4096


def decoded(data: bytes, encoding: Encoding, name: str) -> NDArray[Any]:
    """Decode a chunk to an array of the chunk's shape, in native byte order.

    Args:
        data: the stored bytes.
        encoding: how the chunks are stored.
        name: name of the chunk in error messages.

    Raises:
        InputError: the chunk is damaged, or decodes to another number of bytes than the metadata state.

    """
    try:
        for number, (codec, _) in reversed(list(enumerate(encoding.codecs))):
            limit = max_encoded_bytes(encoding) if number else encoding.nbytes or _TEXT_BYTES
            data = checked(data, name) if codec == "crc32c" else bytes(_DECODERS[codec](data, out=limit))
        if encoding.dtype is None:
            return _texts(data, encoding)
        if len(data) != encoding.nbytes:
            raise _damaged(name, f"it has {len(data)} bytes, not {encoding.nbytes}")
    except (RuntimeError, ValueError, struct.error) as error:  # RuntimeError is the root of the errors of imagecodecs
        raise _damaged(name, error) from error
    array = np.frombuffer(data, encoding.dtype)
    if encoding.order:
        stored = tuple(encoding.shape[axis] for axis in encoding.order)
        array = array.reshape(stored).transpose(np.argsort(encoding.order))
    return array.reshape(encoding.shape).astype(encoding.dtype.newbyteorder("="), copy=False)


def checked(data: bytes, name: str) -> bytes:
    """Verify and remove the CRC-32C checksum at the end of ``data``. Raise InputError if it is wrong."""
    try:
        from google_crc32c import value
    except ModuleNotFoundError as error:
        raise InputError(f'{name} has a CRC-32C checksum; to read it pip install "vllm-mmout[zarr]"') from error
    content, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
    if value(content) != int.from_bytes(checksum, "little"):
        raise _damaged(name, "its checksum is wrong")
    return content


def _texts(data: bytes, encoding: Encoding) -> NDArray[Any]:
    """Decode a chunk of strings that the codec vlen-utf8 encoded, and return an array of str.

    The data are the number of strings, then the length and the UTF-8 bytes of each string.
    """
    (count,) = struct.unpack_from("<I", data)
    texts, at = [], 4
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return np.array(texts, np.object_).reshape(encoding.shape)


def _damaged(name: str, reason: object) -> InputError:
    return InputError(f"{name} is a damaged chunk: {reason}; fetch or write the Zarr store again")
