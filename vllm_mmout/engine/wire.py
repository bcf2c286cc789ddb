"""Pack the options and the results of requests into messages between the frontend and the workers.

A request is marked if its OutputParams are in ``PoolingParams.extra_kwargs``. Marked requests get decoded outputs.
Requests by ``LLM.encode``, ``/pooling`` and IO Processor plugins are not marked and get raw tensors. The entry may come
from a client, so it is validated here, and may hold only the options of a request.

``EngineCoreOutput.pooling_output`` holds exactly one tensor. A dict or a tuple would crash the engine at decoding.

A buffer consists of ``MAGIC``, the header's length (uint32, little endian), the header (msgpack), and the elements of
each tensor in C order. Each tensor is aligned to ``ALIGNMENT`` bytes from the start of the buffer. Two elements of a
uint8 tensor on the CPU share a byte if all its values fit (`fit_halves`), as the classes of most maps do. This module
packs them, not the processors, so that authors always see class ids.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import torch

from vllm_mmout.engine.half_byte_packing import fit_halves, from_halves, to_halves
from vllm_mmout.errors import OptionError, ReduceError
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.raw import named, queue_copy

if TYPE_CHECKING:
    from vllm.pooling_params import PoolingParams

    from vllm_mmout.processors.base import Raw

MAGIC = b"MMO1"
ALIGNMENT = 64
MAX_BYTES = 1 << 31
MAX_AXES = 64  # torch's own limit

DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
}


class TensorHeader(msgspec.Struct, array_like=True, frozen=True):
    """Key, dtype and shape of a tensor, and its byte offset in the buffer of a request's result."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    halved: bool = False
    """Whether each byte packs two uint8 elements, the first element in the low 4 bits. The 4 bits 1111 encode 255."""


class ProcessorHeader(msgspec.Struct, array_like=True, frozen=True):
    """Name of an output processor, and the key, dtype, shape and offset of each tensor that its ``reduce`` returned."""

    name: str
    single: bool
    """Whether ``reduce`` returned a tensor rather than a dict of tensors."""
    tensors: tuple[TensorHeader, ...]


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """Error of the model or of a processor in the worker, which is sent instead of a request's result."""

    processor: str
    """Name of the processor whose ``reduce`` failed, or an empty string if the model failed."""
    kind: str
    message: str
    tile: int | None = None
    """Index of the failed tile among the tiles of its engine request. None if the request is for a single input."""


class Header(msgspec.Struct, array_like=True, frozen=True):
    """Header of a buffer with a request's result. It describes the tensors of each processor, or the failure."""

    processors: tuple[ProcessorHeader, ...] = ()
    failure: Failure | None = None


Unpacked: TypeAlias = "dict[str, Raw]"


def pack(results: Mapping[str, Raw]) -> torch.Tensor:
    """Pack the results of requests whose tensors have equal shapes into bytes, on the device of the tensors.

    The work is queued on the device. This function does not wait for it.

    Args:
        results: the tensor or dict of tensors of each processor, by the processor's name. Axis 0 is the requests.

    Returns:
        Contiguous uint8 tensor [requests, bytes] with a buffer in each row.

    Raises:
        ReduceError: a dtype is not in ``DTYPES``, or a buffer would be larger than ``MAX_BYTES``.

    """
    tensors = [tensor for raw in results.values() for tensor in named(raw).values()]
    halved = [tensor[:1].numel() <= MAX_BYTES and fit_halves(tensor) for tensor in tensors]
    header, starts, total = _plan(results, halved)
    first = tensors[0]
    requests = first.shape[0]
    buffers = torch.zeros((requests, total), dtype=torch.uint8, device=first.device)
    buffers[:, : len(header)] = queue_copy(torch.frombuffer(bytearray(header), dtype=torch.uint8), first.device)
    for tensor, half, start in zip(tensors, halved, starts, strict=True):
        if half:
            flat = to_halves(tensor.reshape(requests, -1))
            buffers[:, start : start + flat.shape[1]] = flat
        elif tensor.numel():
            whole = tensor.resolve_conj().resolve_neg()  # a lazy view still has the bytes of its base
            rows = whole.reshape(requests, -1).contiguous()
            # An axis of length 1 may have any stride, and view() refuses some strides.
            flat = rows.as_strided(rows.shape, (rows.shape[1], 1)).view(torch.uint8)
            buffers[:, start : start + flat.shape[1]] = flat
    return buffers


def pack_failure(failure: Failure) -> torch.Tensor:
    """Pack a failure into bytes, uint8 [bytes] on the CPU, to send it instead of a result."""
    return torch.frombuffer(bytearray(_encode(Header(failure=failure))), dtype=torch.uint8)


def unpack(buffer: torch.Tensor) -> Unpacked | Failure:
    """Unpack the result or the failure that the worker sent for a request.

    Args:
        buffer: uint8 [bytes], as the worker packed it.

    Returns:
        The tensor or dict of tensors of each processor without axis 0, by the processor's name, or the failure. The
        tensors are views of `buffer` if possible.

    Raises:
        ReduceError: ``buffer`` does not begin with ``MAGIC``, or is damaged.

    """
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or bytes(buffer[:4].tolist()) != MAGIC:
        raise ReduceError(
            f"the engine sent {buffer.dtype} {list(buffer.shape)}, not a packed result: vllm_mmout is not loaded in"
            " its workers; if VLLM_PLUGINS is set there, it must list vllm_mmout"
        )
    header = _header(buffer)
    if header.failure is not None:
        return header.failure
    results: Unpacked = {}
    for processor in header.processors:
        views = {tensor.key: _view(buffer, tensor) for tensor in processor.tensors}
        if not views or (processor.single and len(views) > 1):
            raise ReduceError(f"a result is damaged: {processor.name!r} has {len(views)} tensors")
        results[processor.name] = next(iter(views.values())) if processor.single else views
    if not results:
        raise ReduceError("a result is damaged: it holds neither a tensor nor a failure")
    return results


def _header(buffer: torch.Tensor) -> Header:
    length = int.from_bytes(bytes(buffer[4:8].tolist()), "little")
    try:
        return msgspec.msgpack.decode(bytes(buffer[8 : 8 + length].numpy()), type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ReduceError(f"a result of {buffer.shape[0]} bytes has a header that cannot be read ({error})") from None


def _plan(results: Mapping[str, Raw], halved: list[bool]) -> tuple[bytes, list[int], int]:
    """Lay out a buffer for ``results``. Return its encoded header, the byte offset of each tensor, and its total size.

    Tensors whose ``halved`` is True need half a byte per element. The loop repeats until the header fits its offsets.
    """
    tensors = [tensor for raw in results.values() for tensor in named(raw).values()]
    sizes = [tensor[0].numel() * tensor.element_size() if tensor.shape[0] else 0 for tensor in tensors]
    sizes = [-(-size // 2) if half else size for size, half in zip(sizes, halved, strict=True)]
    header, room = b"", 0
    while True:
        starts, end = [], room
        for size in sizes:
            starts.append(end)
            end += _aligned(size)
        if end > MAX_BYTES:
            raise ReduceError(f"a result of {end} bytes is over the limit of {MAX_BYTES}; return less from reduce()")
        offsets, halves = iter(starts), iter(halved)
        heads = tuple(
            ProcessorHeader(
                name,
                isinstance(raw, torch.Tensor),
                tuple(
                    TensorHeader(key, _dtype_name(tensor), tuple(tensor.shape[1:]), next(offsets), next(halves))
                    for key, tensor in named(raw).items()
                ),
            )
            for name, raw in results.items()
        )
        header = _encode(Header(processors=heads))
        if _aligned(len(header)) <= room:
            return header, starts, end
        room = _aligned(len(header))


def _encode(header: Header) -> bytes:
    body = msgspec.msgpack.encode(header)
    return MAGIC + struct.pack("<I", len(body)) + body


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _dtype_name(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ReduceError(
            f"a tensor of dtype {name} cannot travel; convert it in reduce() to one of {', '.join(DTYPES)}"
        )
    return name


def _view(buffer: torch.Tensor, head: TensorHeader) -> torch.Tensor:
    dtype = DTYPES.get(head.dtype)
    if dtype is None or min(head.offset, *head.shape, 0) < 0 or head.offset % ALIGNMENT or len(head.shape) > MAX_AXES:
        raise ReduceError(f"a result is damaged: it has a tensor of {head.dtype} {list(head.shape)} at {head.offset}")
    count = math.prod(head.shape)
    if head.halved and dtype != torch.uint8:
        raise ReduceError(f"a result is damaged: two elements of {head.dtype} cannot share a byte")
    end = head.offset + (-(-count // 2) if head.halved else count * dtype.itemsize)
    if end > buffer.shape[0] or math.prod(length or 1 for length in head.shape) > MAX_BYTES:
        raise ReduceError(f"a result of {buffer.shape[0]} bytes is cut off: its header names byte {end}")
    if end == head.offset:
        return torch.empty(head.shape, dtype=dtype)
    part = buffer[head.offset : end]
    if head.halved:
        return from_halves(part, count).reshape(head.shape)
    if part.storage_offset() % dtype.itemsize:  # the received bytes are not aligned for this dtype
        part = part.clone()
    return part.view(dtype).reshape(head.shape)


KEY = "mmout"
TRACED = "mmout_traced"
"""Key in a request's ``extra_kwargs`` for tracing. The value is (request id, index of the first tile, number of tiles).
For a request without tiles, the index is None. The key is removed if a client sends it."""
REPORTS = "mmout_reports"
"""Key in a request's ``extra_kwargs``. The value lists the steps after which the request sends an early output.

Only this package's `generate` may set the key. The key is removed if a client sends it.
"""


_KEPT_BYTES = 1024
"""Largest packed size, in bytes, of request options whose parsed form is cached. Larger options are parsed anew."""


def mark(params: OutputParams, reports: Sequence[int] = ()) -> dict[str, Any]:
    """Return the ``extra_kwargs`` that mark a request. After each step in ``reports``, the request sends a preview."""
    return {KEY: params.to_wire()} | ({REPORTS: list(reports)} if reports else {})


def marked(pooling_params: PoolingParams, mark: Mapping[str, Any]) -> PoolingParams:
    """Add the entries of ``mark`` to the ``extra_kwargs`` of ``pooling_params``, and return the params."""
    pooling_params.extra_kwargs = {**(pooling_params.extra_kwargs or {}), **mark}
    return pooling_params


def without_ours(pooling_params: PoolingParams | None) -> None:
    """Remove this package's keys `TRACED` and `REPORTS` from ``pooling_params``. Clients may not set these keys."""
    if pooling_params is not None and pooling_params.extra_kwargs:
        for key in (TRACED, REPORTS):
            pooling_params.extra_kwargs.pop(key, None)


def read(pooling_params: PoolingParams | None) -> OutputParams | None:
    """Return the request options that ``pooling_params`` holds. Return None if ``pooling_params`` holds no options."""
    extra = pooling_params.extra_kwargs if pooling_params is not None else None
    if not extra or KEY not in extra:
        return None
    options = extra[KEY]
    if not isinstance(options, Mapping):
        raise OptionError(f'extra_kwargs["{KEY}"] must be a table of options, got {type(options).__name__}')
    try:
        packed = msgspec.msgpack.encode(options)
    except (TypeError, ValueError, OverflowError, RecursionError):  # from_mapping then names the wrong value
        return OutputParams.from_mapping(options)
    return _params(packed) if len(packed) <= _KEPT_BYTES else OutputParams.from_mapping(options)


@lru_cache(maxsize=64)
def _params(packed: bytes) -> OutputParams:
    """Parse the packed options of a request. The result is cached, because all tiles of a scene have equal options."""
    return OutputParams.from_mapping(msgspec.msgpack.decode(packed))
