"""Pictures of a raster while its tiles are joined: what is seen is finished, and as it will be."""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiles_for_tests import parts_of, pieces, shuffled

from vllm_mmout import OutputParams
from vllm_mmout.geo import Georeference, TileGrid, axis_weights
from vllm_mmout.outputs import RasterOutput
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.partial_images import PartialImages
from vllm_mmout.processors import Parts

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
COLOURS = np.array([[200, 30, 40], [0, 90, 255], [17, 18, 19], [250, 251, 252]], "uint8")
GRID = TileGrid(20, 30, 8)
SCENE = np.arange(600).reshape(1, 20, 30).astype("uint8") % 4


def silent() -> None:
    """Nobody is told."""


def grown(parts, grid, growing, *, blend="cosine", finish=None):
    """RGBA of the whole raster, and the copies that were taken on the way."""
    params = OutputParams(overlap=grid.overlap, blend=blend).of_part()
    source = Source(size=(grid.height, grid.width))
    raster = Parts(parts, grid=grid, source=source, growing=growing).mosaic(params, finish)
    try:
        whole = np.asarray(raster.image.convert("RGBA"))
    finally:
        raster.close()
    copies = []
    while (copy := growing.take()) is not None:
        copies.append(copy)
    return whole, copies


def rgba(copy):
    """RGBA of a copy, as Pillow has it after a PNG was written and read."""
    from io import BytesIO

    from PIL import Image

    with Image.open(BytesIO(copy.image().to_bytes("png"))) as picture:
        return np.asarray(picture.convert("RGBA"))


def check(whole, copies):
    """What is seen only grows, and equals the whole where it is seen."""
    pictures = [rgba(copy) for copy in copies]
    for picture in pictures:
        assert picture.shape == whole.shape
        seen = picture[..., 3] == 255
        assert not picture[~seen].any()
        np.testing.assert_array_equal(picture[seen], whole[seen])
    for before, after in pairwise(pictures):
        assert not (before[..., 3] > after[..., 3]).any()
    return [picture[..., 3] == 255 for picture in pictures]


def last_tiles(grid, blend, order, scale):
    """Of each pixel the place in the order of the last tile that counts there."""
    axes = []
    for starts, size in ((grid.rows, grid.height), (grid.cols, grid.width)):
        firsts = [start * scale for start in starts]
        weights = axis_weights(firsts, min(grid.tile, size) * scale, size * scale, blend)
        axes.append(list(zip(firsts, weights, strict=True)))
    last = np.zeros((grid.height * scale, grid.width * scale), int)
    for place, index in enumerate(order):
        (row, down), (col, across) = axes[0][index // len(grid.cols)], axes[1][index % len(grid.cols)]
        here = last[row : row + len(down), col : col + len(across)]
        here[np.multiply.outer(down, across) > 0] = place  # places go up
    return last


@st.composite
def grids(draw):
    """Grids of small scenes."""
    tile = draw(st.integers(2, 20))
    shared = draw(st.integers(0, tile // 2))
    sizes = st.integers(1, 5 * (tile - shared))
    return TileGrid(draw(sizes), draw(sizes), tile, shared, draw(st.sampled_from(["shift", "pad"])))


def chosen(probabilities):
    """Classes of values of four planes, nodata where one is unknown."""
    planes = probabilities.array
    unknown = np.isnan(planes).any(axis=0)
    ids = np.where(unknown, 255, np.nan_to_num(planes).argmax(axis=0)).astype("uint8")
    return RasterOutput(ids[np.newaxis], nodata=255, palette=COLOURS)


@settings(max_examples=120)
@given(
    grid=grids(),
    kind=st.sampled_from(["classes", "finished", "colours", "bool"]),
    blend=st.sampled_from(["cosine", "linear", "none"]),
    masked=st.booleans(),
    scale=st.sampled_from([1, 2]),
    most=st.sampled_from([7, 16, 2048]),
    seed=st.integers(0, 2**32),
)
def test_seen_pixels_are_finished_pixels(grid, kind, blend, masked, scale, most, seed):
    """After each tile, of any order, exactly the valid pixels of which all tiles came are seen, as they stay."""
    random = np.random.default_rng(seed)
    size = (grid.height, grid.width)
    valid = random.random(size) < 0.7 if masked else None
    bands, known = {
        "classes": (1, {"nodata": 3, "palette": COLOURS}),
        "finished": (4, {"nodata": math.nan}),
        "colours": (3, {"nodata": 7}),
        "bool": (1, {"palette": COLOURS[:2]}),
    }[kind]
    side = (
        pieces(np.zeros((1, *size)), grid)[0].shape[1] * scale,
        pieces(np.zeros((1, *size)), grid)[0].shape[2] * scale,
    )
    outputs = []
    for _ in range(len(grid)):
        if kind == "finished":
            values = random.random((bands, *side)).astype("float32")
            values[:, random.random(side) < 0.1] = np.nan
        else:
            values = random.integers(0, {"classes": 4, "colours": 40, "bool": 2}[kind], (bands, *side), "uint8")
        outputs.append(values.astype(bool) if kind == "bool" else values)
    for index in random.permutation(len(grid))[: len(grid) // 4]:
        outputs[index] = None
    parts = shuffled(parts_of(outputs, grid, valid, **known), seed)
    if all(part.output is None for part in parts):
        return
    most = most if kind in ("classes", "finished") else 2048  # pixels of others are averaged
    growing = PartialImages(len(parts) - 1, len(parts), silent)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("partial_images", "stored", "rendering"):
            patch.setattr(f"vllm_mmout.outputs.{module}.PREVIEW", most)
        whole, copies = grown(parts, grid, growing, blend=blend, finish=chosen if kind == "finished" else None)
    seen = check(whole, copies)
    begun = next(place for place, part in enumerate(parts) if part.output is not None)
    assert [copy.tiles for copy in copies] == list(range(begun + 1, len(parts)))
    blends = kind == "finished" and grid.overlap
    last = last_tiles(grid, blend if blends else "none", [part.index for part in parts], scale)
    if max(last.shape) <= most:
        for copy, mask in zip(copies, seen, strict=True):
            np.testing.assert_array_equal(mask, (last < copy.tiles) & (whole[..., 3] == 255))


def test_a_picture_has_the_place_of_the_result(monkeypatch):
    """Its GeoTIFF covers the extent of the result in fewer pixels, and is transparent where nothing is joined."""
    from rasterio.io import MemoryFile

    monkeypatch.setattr("vllm_mmout.outputs.partial_images.PREVIEW", 15)
    place = Georeference(crs="EPSG:32632", transform=(10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0))
    parts = parts_of(pieces(SCENE, GRID), GRID, None, palette=COLOURS)
    growing = PartialImages(1, len(GRID), silent)
    source = Source(size=(20, 30), georeference=place)
    Parts(parts, grid=GRID, source=source, growing=growing).mosaic(OutputParams().of_part()).close()
    picture = growing.take().image()
    with MemoryFile(picture.geotiff()) as memory, memory.open() as file:
        assert file.crs.to_epsg() == 32632
        assert file.transform[:6] == (20.0, 0.0, 500000.0, 0.0, -20.0, 5000000.0)
        assert [band.name for band in file.colorinterp] == ["red", "green", "blue", "alpha"]
        np.testing.assert_array_equal(np.moveaxis(file.read(), 0, 2), picture.array)
        assert file.tags()["MMOUT_FULL_WIDTH"] == "30"
        assert {0, 255} == set(np.unique(file.read(4)).tolist())


@pytest.mark.heavy
def test_classes_of_a_larger_raster_are_those_of_its_picture():
    """At the size of a picture each pixel is what it is in the whole one, though most of the raster is not there."""
    grid = TileGrid(4100, 2300, 1000, 0)
    scene = np.random.default_rng(1).integers(0, 4, (1, 4100, 2300), "uint8")
    parts = shuffled(parts_of(pieces(scene, grid), grid, palette=COLOURS, nodata=3), 5)
    whole, copies = grown(parts, grid, PartialImages(3, len(grid), silent))
    assert whole.shape == (2048, 1149, 4)
    seen = check(whole, copies)
    assert [copy.tiles for copy in copies] == [4, 8, 12]
    assert 0 < seen[0].mean() < seen[1].mean() < seen[2].mean() < (whole[..., 3] == 255).mean()


@pytest.mark.parametrize(
    ("wanted", "total", "expected"),
    [
        (3, 400, [100, 200, 300]),
        (1, 9, [5]),
        (2, 9, [3, 6]),
        (3, 9, [3, 5, 7]),
        (3, 3, [1, 2]),
        (3, 2, [1]),
        (3, 1, []),
    ],
)
def test_when_copies_are_due(wanted, total, expected):
    """The k-th of n is due when k of n + 1 parts of the tiles are joined, none twice, and none with the last tile."""
    growing = PartialImages(wanted, total, silent)
    growing.begin((4, 4), RasterOutput(np.zeros((1, 1, 1), "uint8")))
    taken = []
    for tiles in range(1, total + 1):
        growing.joined()
        copy = growing.take()
        if copy is not None:
            assert copy.tiles == tiles
            taken.append(tiles)
        assert growing.take() is None
    assert taken == expected


def test_the_first_of_three_comes_before_half():
    """Whatever the number of tiles, from three on."""
    for total in range(3, 500):
        growing = PartialImages(3, total, silent)
        growing.begin((1, 1), RasterOutput(np.zeros((1, 1, 1), "uint8")))
        while (copy := growing.take()) is None:
            growing.joined()
        assert copy.tiles < total / 2


def test_copies_wait_for_the_first_tile_with_an_output():
    """Before it nobody knows what the raster is: what was due is due then, once."""
    parts = parts_of([None] * 7 + pieces(SCENE, GRID)[7:], GRID, palette=COLOURS, nodata=9)
    whole, copies = grown(parts, GRID, PartialImages(3, len(GRID), silent))
    assert [copy.tiles for copy in copies] == [8, 9]
    check(whole, copies)


def test_of_copies_that_nobody_waits_for_the_newest_is_left():
    """Those taken while somebody waited are kept; whoever joins is never held up."""
    told = []
    growing = PartialImages(5, 6, lambda: told.append(growing.awaited))
    growing.begin((1, 1), RasterOutput(np.zeros((1, 1, 1), "uint8")))
    growing.joined()
    growing.joined()
    assert [growing.take().tiles, growing.take().tiles, growing.take()] == [1, 2, None]
    growing.awaited = False
    growing.joined()
    growing.joined()
    growing.joined()
    growing.awaited = True
    assert [growing.take().tiles, growing.take()] == [5, None]
    assert told == [True, True, False, False, False]


def test_a_copy_does_not_change_with_what_comes_later():
    """Another thread may make its picture while tiles are joined."""
    growing = PartialImages(3, 4, silent)
    growing.begin((1, 4), RasterOutput(np.zeros((1, 1, 1), "uint8"), palette=COLOURS))
    for col in range(3):
        growing.put(0, col, RasterOutput(np.full((1, 1, 1), col, "uint8"), palette=COLOURS))
        growing.joined()
    pictures = [rgba(growing.take())[0] for _ in range(3)]
    for number, picture in enumerate(pictures):
        np.testing.assert_array_equal(picture[: number + 1, :3], COLOURS[: number + 1])
        assert not picture[number + 1 :].any()


def test_grey_goes_over_what_is_known_so_far():
    """From black for the smallest finished value to white for the largest, as far as they are known."""
    values = np.array([[[5.0, 7.0, 9.0, 100.0]]], "float32")
    growing = PartialImages(1, 2, silent)
    growing.begin((1, 4), RasterOutput(values))
    growing.put(0, 0, RasterOutput(values[..., :3]))
    growing.joined()
    np.testing.assert_array_equal(rgba(growing.take())[0, :, ::3], [[0, 255], [128, 255], [255, 255], [0, 0]])


def test_what_is_closed_takes_no_more():
    """Tiles that come later do no harm, and leave nothing."""
    growing = PartialImages(3, 4, silent)
    growing.begin((4, 4), RasterOutput(np.zeros((1, 1, 1), "uint8")))
    growing.joined()
    growing.close()
    growing.put(0, 0, RasterOutput(np.zeros((1, 4, 4), "uint8")))
    growing.joined()
    assert growing.take() is None


@pytest.mark.parametrize(("dtype", "bands", "picture"), [("uint8", 1, 4), ("float32", 1, 16), ("uint8", 3, 12)])
def test_memory_is_bounded(dtype, bands, picture):
    """A raster of a hundred million pixels takes its picture, a byte a pixel of it, and a copy with a bit a pixel."""
    pixel = np.zeros((bands, 1, 1), dtype)
    tracemalloc.start()
    try:
        growing = PartialImages(3, 4, silent)
        growing.awaited = False
        growing.begin((10000, 10000), RasterOutput(pixel))
        growing.joined()
        growing.joined()
        held, most = (number / 2**20 for number in tracemalloc.get_traced_memory())
        assert held == pytest.approx(picture + 4 + picture + 0.5, abs=0.1)
        assert most < held + 1
        growing.joined()
        held = tracemalloc.get_traced_memory()[0] / 2**20
        assert held == pytest.approx(picture + 0.5, abs=0.1)
        growing.take()
        assert tracemalloc.get_traced_memory()[0] < 2**20
    finally:
        tracemalloc.stop()
