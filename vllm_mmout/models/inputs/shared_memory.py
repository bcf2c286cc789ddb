"""Share memory between a frontend and the engine's workers, so that requests need not contain the pixels of tiles.

The frontend decodes tiles straight into a `SharedMemory`, and a request carries only the place, layout and shape of
each tensor in it. Bytes would be copied to the engine core, and again to a worker in another process.

The first requests carry bytes and the address of the memory. A worker that can map the memory sets a flag in it.
Only then does the frontend use it for this engine's requests. A worker on another machine never sets its flag.

The system frees the memory when its processes end, even if they are killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import threading
import weakref
from bisect import bisect
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np

from vllm_mmout.geo import READ_AHEAD_BYTES

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_NAME = "mmout-tiles"
_ALIGNMENT = 4096
_LARGEST_BYTES = 1 << 30
"""Maximum size in bytes of one `SharedMemory`, not counting its header."""
_TOKEN_BYTES = 5
_HEADER_BYTES: Final = 4096
"""Size in bytes of the header of the shared memory. The header holds a random number that identifies the memory.

It also holds a byte for each engine. The engine's worker sets the byte to 1 after mapping the memory."""


class Address(NamedTuple):
    """Numbers that a worker needs to find and check the memory of a frontend."""

    pid: int
    """Id of the frontend's process."""
    fd: int
    """File descriptor of the shared memory in the frontend's process."""
    token: int
    """Random number at the start of the shared memory. A worker that reads another number there has opened the wrong
    memory."""


class SharedMemory:
    """Thread-safe memory of a frontend for the pixels of tiles. Workers on the same machine can map the memory.

    A part of the memory is used as long as an array that `empty` returned, or a view of it, exists.
    """

    def __init__(self, nbytes: int, *, bands_last: bool = False) -> None:
        """Reserve ``nbytes`` bytes of address space. The system provides the memory when it is used or pinned."""
        self.nbytes = nbytes
        self.bands_last = bands_last
        """True if tiles may store the bands of a pixel side by side, as some files do.

        Such tiles are allocated with `empty_bands_last`.
        """
        size = _HEADER_BYTES + nbytes
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, fd)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.address = Address(os.getpid(), fd, secrets.randbits(8 * _TOKEN_BYTES))
        self._map = mmap.mmap(fd, size)
        self._map[:_TOKEN_BYTES] = self.address.token.to_bytes(_TOKEN_BYTES, "little")
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._free = [(_HEADER_BYTES, size)]
        """Sorted (start, end) byte ranges that are not used."""
        self._returned: deque[tuple[int, int]] = deque()
        """Byte ranges of deleted arrays that must still be added to ``_free``. They wait here, because an array may be
        deleted while ``_free`` is locked."""
        self._lock = threading.RLock()  # written in C, so that an interrupt cannot leave it held

    @classmethod
    def of_engines(cls, engines: int, nbytes: int, *, bands_last: bool = False) -> Self | None:
        """Create shared memory for the tiles of ``engines`` engines. Return None if the memory cannot be created.

        ``nbytes`` is the maximum size in bytes of the tiles of one engine.

        If ``bands_last`` is True, tiles keep the layout of files that store the bands of a pixel side by side. A GPU
        reorders the bands faster than the reading threads can. An engine on a CPU has less time to spare for that than
        these threads, so they reorder the bands themselves.

        The memory has twice the size of these tiles and of what the reading threads decode in advance, since arrays of
        different sizes leave gaps. It has at most 1 GiB, because a worker on a GPU pins all of it. Return None if the
        header has too few bytes to mark all engines, or if the system provides no memory files. Only Linux has them,
        and a container may forbid it.
        """
        if not hasattr(os, "memfd_create") or engines > _HEADER_BYTES - _TOKEN_BYTES:
            return None
        with suppress(OSError):
            return cls(min(2 * (engines * nbytes + READ_AHEAD_BYTES), _LARGEST_BYTES), bands_last=bands_last)
        return None

    def is_mapped_by(self, engine: int) -> bool:
        """Return whether the worker of an engine has mapped this memory. ``engine`` is the engine's index."""
        return self._map[_TOKEN_BYTES + engine] == 1

    def is_mapped_by_all(self, engines: int) -> bool:
        """Return whether the worker of every engine has mapped this memory. ``engines`` is the number of engines."""
        return all(map(self.is_mapped_by, range(engines)))

    @property
    def free_bytes(self) -> int:
        """Number of bytes of the shared memory that no array uses."""
        with self._lock:
            self._take_back()
            return sum(end - start for start, end in self._free)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialized array, like `numpy.empty`.

        It is in this memory if a worker has mapped the memory and if there is room.
        """
        part = self._allocate(prod(shape) * dtype.itemsize)
        return np.empty(shape, dtype) if part is None else part.view(dtype).reshape(shape)

    def empty_bands_last(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialized array [tiles, bands, height, width] that stores the bands of a pixel side by side.

        If the array cannot be in this shared memory, return a numpy array in row-major order instead.
        """
        part = self._allocate(prod(shape) * dtype.itemsize)
        if part is None:  # it will be sent as bytes, which must have the order of the shape
            return np.empty(shape, dtype)
        tiles, bands, height, width = shape
        return part.view(dtype).reshape(tiles, height, width, bands).transpose(0, 3, 1, 2)

    def moved(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy ``tensors`` into this shared memory, and return the copies in a dict with the same keys.

        A tensor is returned unchanged if it is in this memory already, if the memory has no room for it, or if no
        worker has mapped the memory.
        """
        import torch

        moved = dict(tensors)
        for name, tensor in tensors.items():
            if self.offset_of(tensor) is None and (part := self._allocate(tensor.nbytes)) is not None:
                moved[name] = torch.from_numpy(part).view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return moved

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        """Return the byte offset of a tensor in this memory. Return None if the tensor is elsewhere or has gaps.

        A tensor without gaps is contiguous, or would be contiguous with axis 1, the bands, as its last axis.
        """
        offset = int(tensor.data_ptr() - self._bytes.ctypes.data) if tensor.is_cpu else -1
        if not _HEADER_BYTES <= offset < self._bytes.nbytes:
            return None
        has_no_gaps = tensor.is_contiguous() or (tensor.ndim > 1 and tensor.movedim(1, -1).is_contiguous())
        return offset if has_no_gaps else None

    def _allocate(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Return an array of ``nbytes`` bytes in this shared memory.

        Return None if the memory has no room for the array, or if no worker has mapped the memory.
        """
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        start = self._find(size) if size and 1 in self._map[_TOKEN_BYTES:_HEADER_BYTES] else None
        if start is None:
            return None
        part: Any = (ctypes.c_char * size).from_buffer(self._map, start)
        weakref.finalize(part, self._returned.append, (start, start + size)).atexit = False
        return np.frombuffer(part, np.uint8, nbytes)

    def _find(self, size: int) -> int | None:
        with self._lock:
            self._take_back()
            for place, (start, end) in enumerate(self._free):
                if end - start >= size:
                    self._free[place : place + 1] = [(start + size, end)] if end - start > size else []
                    return start
        return None

    def _take_back(self) -> None:
        """Add the byte ranges of deleted arrays to the free ranges, and merge adjacent ranges."""
        while self._returned:
            start, end = self._returned.popleft()
            place = bisect(self._free, (start, end))
            if place < len(self._free) and self._free[place][0] == end:
                end = self._free.pop(place)[1]
            if place and self._free[place - 1][1] == start:
                place -= 1
                start = self._free.pop(place)[0]
            self._free.insert(place, (start, end))


def tensor_at(memory: torch.Tensor | None, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor at a byte offset in a memory that `map_memory` returned, without a copy.

    Raises:
        RuntimeError: ``memory`` is None, or the tensor exceeds it.

    """
    if memory is None:
        raise RuntimeError("a request's tensors are in shared memory, which this process cannot map")
    end = offset + prod(shape) * dtype.itemsize
    if not _HEADER_BYTES <= offset <= end <= memory.nbytes:
        raise RuntimeError(f"a tensor of {dtype} {list(shape)} at byte {offset} exceeds the shared memory")
    return memory[offset:end].view(dtype).view(tuple(shape))


@cache
def map_memory(address: Address, engine: int) -> torch.Tensor | None:
    """Map a frontend's shared memory into this worker process. Return None if the memory cannot be mapped.

    The header of the memory then says that the worker of the engine with the index ``engine`` has mapped the memory.

    Returns:
        The memory as uint8 [bytes], pinned if the worker uses a GPU. None if this process is the frontend itself, or if
        the frontend runs on another machine.

    """
    import torch

    path = Path(f"/proc/{address.pid}/fd/{address.fd}")
    try:
        if address.pid == os.getpid() or not str(path.readlink()).startswith(f"/memfd:{_NAME}"):
            return None
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None
    if int.from_bytes(mapped[:_TOKEN_BYTES], "little") != address.token:
        return None
    memory = torch.frombuffer(mapped, dtype=torch.uint8)
    cuda: Any = torch.cuda
    if cuda.is_initialized():  # without pinning, copies to the GPU are slower but correct
        cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    mapped[_TOKEN_BYTES + engine] = 1
    return memory
