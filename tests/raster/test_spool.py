"""Blocks in a spool: copying them in order, and what of them stays in memory."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vllm_mmout.raster.writing import pyramid
from vllm_mmout.raster.writing.layout import Layout
from vllm_mmout.raster.writing.pyramid import Pyramid
from vllm_mmout.raster.writing.recent import Recent
from vllm_mmout.raster.writing.reduction import Meaning
from vllm_mmout.raster.writing.spool import Spool

BLOCKS = [bytes([number]) * length for number, length in enumerate([3, 2_500_000, 1, 70_000, 9])]
ORDER = [1, 2, 0, 4, 3]


def copied(folder: Path) -> bytes:
    """The blocks in another order, from file to file."""
    with (folder / "spool").open("w+b", buffering=0) as file, (folder / "out").open("wb", buffering=0) as target:
        spool = Spool(file)
        offsets = np.array([spool.append(block) for block in BLOCKS])
        sizes = np.array([len(block) for block in BLOCKS])
        assert [spool.read(*place) for place in zip(offsets, sizes, strict=True)] == BLOCKS
        spool.copy(target, offsets[ORDER], sizes[ORDER])
    return (folder / "out").read_bytes()


EXPECTED = b"".join(BLOCKS[number] for number in ORDER)


def test_blocks_are_copied_in_the_order_asked(tmp_path: Path) -> None:
    """From file to file, and from and to files in memory."""
    assert copied(tmp_path) == EXPECTED
    spool, target = Spool(BytesIO()), BytesIO()
    offsets = np.array([spool.append(block) for block in BLOCKS])
    spool.copy(target, offsets[ORDER], np.array([len(BLOCKS[number]) for number in ORDER]))
    assert target.getvalue() == EXPECTED


def test_a_file_that_takes_a_part_gets_the_rest() -> None:
    """An unbuffered file may take less than it is given, as a disk that is nearly full does."""

    class Slow(BytesIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[:1000])

    spool, target = Spool(BytesIO()), Slow()
    offsets = np.array([spool.append(block) for block in BLOCKS])
    spool.copy(target, offsets[ORDER], np.array([len(BLOCKS[number]) for number in ORDER]))
    assert target.getvalue() == EXPECTED


def test_blocks_that_lie_together_are_copied_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five blocks two lie behind one another; in each piece there is a mebibyte at most."""
    real, pieces = Spool.read, []
    monkeypatch.setattr(Spool, "read", lambda spool, at, size: pieces.append(size) or real(spool, at, size))
    assert copied(tmp_path) == EXPECTED
    mib = 2**20
    assert pieces[len(BLOCKS) :] == [mib, mib, 2_500_001 - 2 * mib, 3, 9, 70_000]


def test_a_spool_that_lost_blocks_says_so(tmp_path: Path) -> None:
    """Bytes that are gone are an error, never zeros."""
    with (tmp_path / "spool").open("w+b", buffering=0) as file, (tmp_path / "out").open("wb", buffering=0) as target:
        spool = Spool(file)
        spool.append(b"abcdef")
        file.truncate(4)
        with pytest.raises(OSError, match="2 bytes of the spooled blocks are gone"):
            spool.copy(target, np.array([0]), np.array([6]))
        with pytest.raises(OSError, match="2 bytes of the spooled blocks are gone"):
            spool.read(0, 6)


def test_what_came_last_stays_up_to_a_number_of_bytes() -> None:
    """The oldest goes first; what is kept is a copy; one that is larger than all room is not kept."""
    recent = Recent(20)
    planes = {(0, 0, 0, col): np.full((1, 8), col, "uint8") for col in range(3)}
    for place, plane in planes.items():
        recent.add(place, plane)
        plane[...] = 9
    assert recent.nbytes == 16
    assert recent.get((0, 0, 0, 0)) is None
    assert recent.get((0, 0, 0, 2)).tolist() == [[2] * 8]
    recent.add((1, 0, 0, 0), np.zeros(21, "uint8"))
    assert (recent.get((1, 0, 0, 0)), recent.nbytes) == (None, 16)
    recent.drop((0, 0, 0, 2))
    recent.drop((0, 0, 0, 2))
    assert recent.nbytes == 8
    recent.clear()
    assert (recent.get((0, 0, 0, 1)), recent.nbytes) == (None, 0)


@pytest.mark.parametrize("bands", [1, 5])
@pytest.mark.parametrize("classes", [False, True])
def test_what_is_kept_for_overviews_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
    bands: int,
    classes: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Whatever the bands and the order, no more bytes are kept than allowed, and none when all is done."""
    limit, most, add = 3 * 2**20, [0], Recent.add

    def watched(recent: Recent, *given: object) -> None:
        add(recent, *given)
        most[0] = max(most[0], recent.nbytes)
        assert recent.nbytes == sum(plane.nbytes for plane in recent._planes.values())

    monkeypatch.setattr(pyramid, "RECENT_BYTES", limit)
    monkeypatch.setattr(Recent, "add", watched)
    made = Pyramid(Layout.of(bands, 1537, 1300, "float32"), Spool(BytesIO()))
    made.expect(Meaning(None, classes))
    places = np.random.default_rng(0).permutation([(row, col) for row in range(4) for col in range(3)]).tolist()
    for row, col in places:
        made.write(row, col, np.zeros((bands, *made.levels[0].layout.inside(row, col)), "float32"))
    assert 2**20 < most[0] <= limit
    assert made._recent.nbytes == 0
    assert all((level.sizes > 0).all() for level in made.levels)
