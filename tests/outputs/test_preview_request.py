"""Pictures of a growing raster when somebody asks: at the next tile, once, and not otherwise."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.partial_images import PartialImages, PreviewRequest

COLOURS = np.array([[200, 30, 40], [0, 90, 255], [17, 18, 19], [250, 251, 252]], "uint8")
VALUES = np.random.default_rng(3).integers(0, 4, (1, 5, 40), "uint8")


def pixels(tile):
    """A tile of one column."""
    return RasterOutput(VALUES[:, :, tile : tile + 1], palette=COLOURS)


def begun(wanted, total, watch, told=None):
    """A raster of so many columns of which nothing is there."""
    growing = PartialImages(wanted, total, (lambda: None) if told is None else (lambda: told.append(1)), watch)
    growing.begin((5, total), pixels(0))
    return growing


def join(growing, tile):
    """Join the next column."""
    growing.put(0, tile, pixels(tile))
    growing.joined()


def check(copy, tiles, total):
    """A picture shows the columns that are there, in their colours, and nothing else."""
    picture = np.asarray(copy.image().image)
    assert (copy.tiles, picture.shape) == (tiles, (5, total, 4))
    np.testing.assert_array_equal(picture[:, :tiles, :3], COLOURS[VALUES[0, :, :tiles]])
    assert (picture[:, :tiles, 3] == 255).all()
    assert not picture[:, tiles:].any()


@given(asks=st.lists(st.integers(0, 2), min_size=1, max_size=40), wanted=st.integers(0, 3))
def test_a_picture_comes_at_the_next_tile_and_not_otherwise(asks, wanted):
    """One for all that was asked before the tile, the last one too; those of given moments come as ever."""
    total, watch, told = len(asks), PreviewRequest(), []
    growing = begun(wanted, total, watch, told)
    moments = {-(-number * total // (wanted + 1)) for number in range(1, wanted + 1)} - {total}
    expected = [tile + 1 for tile, count in enumerate(asks) if count or tile + 1 in moments]
    taken = []
    for tile, count in enumerate(asks):
        for _ in range(count):
            watch.ask()
        join(growing, tile)
        while (copy := growing.take()) is not None:
            check(copy, tile + 1, total)
            taken.append(copy.tiles)
    assert taken == expected
    assert len(told) == len(expected)


def test_what_is_asked_after_the_last_tile_is_forgotten():
    """No tile comes that would bring it, and nothing is kept for it."""
    watch = PreviewRequest()
    growing = begun(0, 2, watch)
    join(growing, 0)
    assert growing._picture is not None
    join(growing, 1)
    assert growing._picture is None
    watch.ask()
    assert growing.take() is None


def test_what_is_asked_before_the_raster_begins_waits_for_its_first_tile():
    """Until then nobody knows what it is."""
    watch = PreviewRequest()
    growing = PartialImages(0, 4, lambda: None, watch)
    watch.ask()
    growing.joined()
    growing.begin((5, 4), pixels(0))
    assert growing.take() is None
    join(growing, 0)
    copy = growing.take()
    assert copy.tiles == 2
    assert growing.take() is None


def test_of_pictures_that_were_asked_for_the_newest_waits():
    """However often somebody asks, no more are kept; those of given moments are not replaced."""
    watch = PreviewRequest()
    growing = begun(1, 8, watch)
    for tile in range(7):
        watch.ask()
        join(growing, tile)
    taken = [growing.take(), growing.take()]
    for copy, tiles in zip(taken, (4, 7), strict=True):
        check(copy, tiles, 8)
    assert growing.take() is None


def test_a_picture_is_not_changed_by_later_tiles():
    """Whoever asked may look at it while tiles are joined."""
    watch = PreviewRequest()
    growing = begun(0, 6, watch)
    copies = []
    for tile in range(6):
        watch.ask()
        join(growing, tile)
        copies.append(growing.take())
    for number, copy in enumerate(copies, start=1):
        check(copy, number, 6)


@pytest.mark.heavy
def test_asking_from_other_threads():
    """Each picture was asked for, and whoever asked before a tile finds a picture at that tile."""
    watch, total = PreviewRequest(), 40
    growing = begun(0, total, watch)
    stopped = threading.Event()

    def keep_asking():
        while not stopped.is_set():
            watch.ask()

    threads = [threading.Thread(target=keep_asking) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for tile in range(total // 2):
            watch.ask()
            join(growing, tile)
            check(growing.take(), tile + 1, total)
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    join(growing, total // 2)  # what they asked last
    while growing.take() is not None:
        pass
    for tile in range(total // 2 + 1, total):
        join(growing, tile)
        assert growing.take() is None


@pytest.mark.parametrize(("dtype", "bands", "picture"), [("uint8", 1, 4), ("float32", 1, 16)])
def test_memory_of_a_raster_that_is_watched(dtype, bands, picture):
    """Its picture and a byte a pixel until the last tile, and one copy that waits with a bit a pixel, asked or not."""
    pixel = np.zeros((bands, 1, 1), dtype)
    watch = PreviewRequest()

    def held():
        return tracemalloc.get_traced_memory()[0] / 2**20

    tracemalloc.start()
    try:
        growing = PartialImages(0, 6, lambda: None, watch)
        growing.begin((10000, 10000), RasterOutput(pixel))
        growing.joined()
        assert held() == pytest.approx(picture + 4, abs=0.1)
        for _ in range(4):
            watch.ask()
            growing.joined()
            assert held() == pytest.approx(picture + 4 + picture + 0.5, abs=0.1)
        growing.take()
        assert held() == pytest.approx(picture + 4, abs=0.1)
        watch.ask()
        growing.joined()
        assert held() == pytest.approx(picture + 0.5, abs=0.1)
        growing.take()
        assert held() < 1
    finally:
        tracemalloc.stop()
