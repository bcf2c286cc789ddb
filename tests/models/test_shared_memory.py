"""Memory shared between a frontend and a worker: its allocator, and which memories a worker maps."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mmout.models.inputs import engine_input
from vllm_mmout.models.inputs.engine_input import FIELD, as_block_input, as_tensor_of_tiles, tensors_of, tiles_of
from vllm_mmout.models.inputs.shared_memory import Address, SharedMemory, map_memory, tensor_at

torch = pytest.importorskip("torch", reason="the tensors are torch's")
pytestmark = pytest.mark.skipif(SharedMemory.of_engines(1, 4096) is None, reason="memory files need Linux")

WORKER = """
import sys, torch
from vllm_mmout.models.inputs.shared_memory import Address, map_memory, tensor_at
address, engine, offset = Address(*map(int, sys.argv[1:4])), int(sys.argv[4]), int(sys.argv[5])
assert map_memory(address._replace(token=address.token ^ 1), engine) is None
assert map_memory(address, engine) is not None
print(tensor_at(map_memory(address, engine), offset, (2, 3), torch.float32).sum().item())
"""


def mapped(memory: SharedMemory, engine: int = 0) -> SharedMemory:
    """Set the flag of an engine, as its worker does."""
    memory._map[5 + engine] = 1
    return memory


def test_it_is_not_used_before_a_worker_has_mapped_it() -> None:
    """Arrays are in ordinary memory, and tensors are not copied, as long as no worker can read the memory."""
    memory = SharedMemory(1 << 20)
    array = torch.from_numpy(memory.empty((4, 5), np.dtype(np.float32)))
    assert memory.offset_of(array) is None
    assert memory.moved({"a": array})["a"] is array
    assert memory.free_bytes == memory.nbytes


@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(0, 7)), max_size=40))
def test_parts_never_overlap_and_come_back(steps: list[tuple[int, int]]) -> None:
    """Arrays in use keep their values, whatever is allocated and freed meanwhile, and all memory is free at the end."""
    memory = mapped(SharedMemory(1 << 18))
    kept: list[np.ndarray] = []
    for number, (size, drop) in enumerate(steps):
        array = memory.empty((size,), np.dtype(np.uint16))
        array[:] = number
        kept.append(array[: max(1, size // 2)])  # a view keeps the memory
        del array
        if drop < len(kept):
            kept.pop(drop)
        assert all((view == view[0]).all() for view in kept)
    kept.clear()
    assert memory.free_bytes == memory.nbytes
    assert len(memory._free) == 1


def test_arrays_are_ordinary_if_it_is_full() -> None:
    """An array that does not fit is allocated as numpy does it."""
    memory = mapped(SharedMemory(8192))
    first = torch.from_numpy(memory.empty((4096,), np.dtype(np.uint8)))
    large = torch.from_numpy(memory.empty((8192,), np.dtype(np.uint8)))
    assert memory.offset_of(first) is not None
    assert memory.offset_of(large) is None


def test_tiles_with_the_bands_last_keep_their_layout() -> None:
    """The bands of a pixel are side by side in this memory, and in the order of the axes if the memory is full."""
    memory = mapped(SharedMemory(1 << 16))
    tiles = memory.empty_bands_last((2, 3, 16, 8), np.dtype(np.uint16))
    assert tiles.shape == (2, 3, 16, 8)
    assert np.moveaxis(tiles, 1, -1).flags.c_contiguous
    tensor = as_tensor_of_tiles(tiles[1:])
    assert memory.offset_of(tensor) == memory.offset_of(as_tensor_of_tiles(tiles)) + tiles[0].nbytes
    assert memory.empty_bands_last((9, 3, 64, 64), np.dtype(np.uint16)).flags.c_contiguous


@pytest.mark.parametrize("bands_last", [False, True])
def test_a_request_carries_where_tensors_are(*, bands_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors in the memory come back from offset, layout and shape, and others as they are."""
    pytest.importorskip("vllm", reason="the input has vLLM's format")
    memory = mapped(SharedMemory(1 << 20))
    allocate = memory.empty_bands_last if bands_last else memory.empty
    tiles = allocate((4, 3, 16, 8), np.dtype(np.uint16))
    tiles[...] = np.arange(tiles.size).reshape(tiles.shape)
    sent = {"pixels": as_tensor_of_tiles(tiles[1:]), "other": torch.arange(3)}
    (item,) = as_block_input(sent, ("pixels", "absent", "other"), 3, memory=memory)["mm_kwargs"]["image"]
    values = item[FIELD].data
    assert tiles_of(values, ("pixels", "absent", "other")) == 3
    assert values[0].numel() == 0
    whole = torch.from_numpy(memory._bytes)
    monkeypatch.setattr(engine_input, "map_memory", lambda address, engine: whole)
    found = tensors_of(values, ("pixels", "absent", "other"))
    assert found.keys() == sent.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in sent.items())


def test_tensors_are_copied_into_it() -> None:
    """Tensors of any dtype keep their values, and strided views are not taken for contiguous tensors."""
    memory = mapped(SharedMemory(1 << 20))
    tensors = {"a": torch.randn(3, 4).to(torch.bfloat16), "b": torch.arange(6).reshape(2, 3).T}
    moved = memory.moved(tensors)
    assert all(torch.equal(moved[name], tensor) for name, tensor in tensors.items())
    assert all(memory.offset_of(tensor) is not None for tensor in moved.values())
    assert memory.offset_of(moved["a"].T) is None


def test_another_process_reads_it_and_says_so() -> None:
    """A process that knows the address reads a tensor and sets the flag of its engine, but not with a wrong token."""
    memory = mapped(SharedMemory(1 << 20), 7)
    tensor = memory.moved({"a": torch.arange(6.0).reshape(2, 3)})["a"]
    arguments = [*memory.address, 3, memory.offset_of(tensor)]
    assert not memory.is_mapped_by(3)
    ran = subprocess.run(
        [sys.executable, "-c", WORKER, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    assert float(ran.stdout) == 15.0
    assert memory.is_mapped_by(3)


def test_a_system_may_forbid_it(monkeypatch) -> None:
    """Then tiles are sent as bytes, as where there are more engines than flags in the header."""

    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    assert SharedMemory.of_engines(5000, 4096) is None
    monkeypatch.setattr(os, "memfd_create", refused)
    assert SharedMemory.of_engines(1, 4096) is None


def test_only_memories_of_other_frontends_are_mapped(tmp_path) -> None:
    """A worker maps neither its own process's memory nor a file, nor the memory of a process that has ended."""
    memory = SharedMemory(8192)
    assert map_memory(memory.address, 0) is None
    with (tmp_path / "secret").open("wb+") as file:
        assert map_memory(Address(os.getppid(), file.fileno(), 1), 0) is None
    assert map_memory(Address(2**22 + 1, 3, 1), 0) is None
    with pytest.raises(RuntimeError, match="cannot map"):
        tensor_at(None, 4096, (1,), torch.uint8)
    with pytest.raises(RuntimeError, match="exceeds the shared memory"):
        tensor_at(torch.empty(8192, dtype=torch.uint8), 8000, (7, 7), torch.float32)
