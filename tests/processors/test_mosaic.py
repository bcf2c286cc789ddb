"""Joining tiles of a raster: nodata, names, errors, and what is left behind."""

from __future__ import annotations

import tracemalloc
import weakref

import numpy as np
import pytest
import rasterio
from tiles_for_tests import joined, parts_of, pieces

from vllm_mmout.errors import DecodeError
from vllm_mmout.geo import Georeference, TileGrid
from vllm_mmout.geo.raster.writing import GeoTiffBlocks
from vllm_mmout.outputs import RasterOutput, TensorOutput
from vllm_mmout.outputs.base import Source
from vllm_mmout.outputs.stored import StoredRaster
from vllm_mmout.processors import Part

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

GRID = TileGrid(20, 30, 16, 8)
SCENE = np.arange(600, dtype="float32").reshape(1, 20, 30)
HALF = np.arange(600).reshape(20, 30) % 2 == 0


def parts(scene: np.ndarray = SCENE, valid: np.ndarray | None = None, **known: object) -> list[Part]:
    return parts_of(pieces(scene, GRID), GRID, valid, **known)


def test_the_result_lies_on_the_scene(tmp_path):
    """A file has the scene's place and items, and the tiles' names, units and nodata, as rasterio reads it."""
    place = Georeference(crs="EPSG:32633", transform=(10.0, 0.0, 5e5, 0.0, -10.0, 4.6e6))
    source = Source(size=(20, 30), georeference=place, metadata={"SENSOR": "S2", "TIFFTAG_SOFTWARE": "x"})
    tiles = parts(np.concatenate([SCENE, -SCENE]), nodata=-1.0, band_names=["a", "b"], units=["m", None])
    raster = joined(tiles, GRID, folder=tmp_path, source=source)
    assert isinstance(raster, StoredRaster)
    with rasterio.open(raster.save(tmp_path / "joined.tif")) as file:
        assert (file.crs.to_epsg(), tuple(file.transform)[:6]) == (32633, place.transform)
        assert (file.nodata, file.descriptions, file.units) == (-1.0, ("a", "b"), ("m", None))
        assert (file.tags()["SENSOR"], "TIFFTAG_SOFTWARE" in file.tags()) == ("S2", False)
    assert [path.name for path in tmp_path.iterdir()] == ["joined.tif"]


def test_more_pixels_get_smaller_ones():
    """A result of twice the resolution covers the same extent."""
    place = Georeference(crs="EPSG:32633", transform=(10.0, 0.0, 5e5, 0.0, -10.0, 4.6e6))
    tiles = parts_of([tile.repeat(2, 1).repeat(2, 2) for tile in pieces(SCENE, GRID)], GRID)
    raster = joined(tiles, GRID, source=Source(size=(20, 30), georeference=place))
    assert (raster.height, raster.width) == (40, 60)
    assert raster.transform == (5.0, 0.0, 5e5, 0.0, -5.0, 4.6e6)


def test_classes_keep_names_and_colours(tmp_path):
    """Names and colours of classes reach the file."""
    colours = np.array([[1, 2, 3], [4, 5, 6]], "uint8")
    raster = joined(
        parts((SCENE % 2).astype("uint8"), class_names=["land", "water"], palette=colours, nodata=255), GRID
    )
    assert (raster.class_names, raster.palette.tolist()) == (("land", "water"), colours.tolist())
    with rasterio.open(raster.save(tmp_path / "classes.tif")) as file:
        assert [file.colormap(1)[number][:3] for number in (0, 1)] == [(1, 2, 3), (4, 5, 6)]
        assert file.tags(1)["CLASS_1"] == "water"


def test_items_that_all_tiles_have_are_kept():
    """Items of tiles that differ say nothing of the whole."""
    tiles = parts()
    for part in tiles:
        part.output.metadata.update(MODEL="a", TILE=str(part.index))
    assert joined(tiles, GRID).metadata == {"MODEL": "a"}


def test_names_may_have_been_assigned_as_lists():
    """As an author's decode may do to the output of another processor."""
    tiles = parts()
    for part in tiles:
        part.output.band_names, part.output.units = ["depth"], ["m"]
    raster = joined(tiles, GRID)
    assert (raster.band_names, raster.units) == (("depth",), ("m",))


def other(**changes: object) -> RasterOutput:
    known = {"array": np.zeros((1, 16, 16), "float32"), "nodata": np.nan, **changes}
    return RasterOutput(**known)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (other(array=np.zeros((2, 16, 16), "float32")), "differ in bands: 1 in the first that came, 2 in another"),
        (other(array=np.zeros((1, 16, 16), "float64")), "differ in dtype: float32"),
        (other(array=np.zeros((1, 16, 15), "float32")), "has 16 x 15 pixels, that of the first tile that came 16 x 16"),
        (other(nodata=None), "differ in nodata: nan in the first that came, None in another"),
        (other(nodata=0.0), "differ in nodata"),
        (other(band_names=["b"]), "differ in band_names"),
        (other(units=["m"]), "differ in units"),
        (other(class_names=["m"]), "differ in class_names"),
        (other(palette=np.zeros((2, 3), "uint8")), "differ in palette: None in the first that came, 2 colours"),
        (TensorOutput(np.zeros(3)), "got a TensorOutput, only a RasterOutput can be joined"),
    ],
)
def test_tiles_that_differ_are_refused(tmp_path, output, says):
    """The error names the window and what differs, and leaves nothing behind."""
    tiles = [Part(index, GRID.window(index), other()) for index in range(len(GRID))]
    tiles[4] = Part(4, GRID.window(4), output)
    with pytest.raises(DecodeError, match=r"tile of rows 4 to 19, columns 8 to 23: ") as caught:
        joined(tiles, GRID, folder=tmp_path)
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_tile_that_comes_twice_or_never_is_an_error():
    """All tiles must come, each once."""
    tiles = parts()
    with pytest.raises(DecodeError, match="tile 0 of 6 came twice"):
        joined([*tiles, tiles[0]], GRID)
    with pytest.raises(DecodeError, match="the tile of rows 4 to 19, columns 14 to 29 never came"):
        joined(tiles[:-1], GRID)


@pytest.mark.parametrize(("shape", "multiple"), [((15, 16), 16), ((4, 4), 4)])
def test_outputs_that_do_not_end_at_whole_pixels_are_refused(shape, multiple):
    """Where a tile begins between pixels of the result, the error says of what sizes must be multiples."""
    grid = TileGrid(18, 18, 16)
    tiles = [Part(index, grid.window(index), RasterOutput(np.zeros((1, *shape)))) for index in range(len(grid))]
    with pytest.raises(DecodeError, match=f"of a tile of 16 x 16.* of its window multiples of {multiple}$"):
        joined(tiles, grid)


class _StopError(Exception):
    pass


@pytest.mark.parametrize("error", [_StopError, KeyboardInterrupt, GeneratorExit])
def test_an_error_between_tiles_leaves_nothing_behind(tmp_path, monkeypatch, error):
    """What is raised where parts come from goes through as it is, and what was written is discarded."""
    discarded, discard = [], GeoTiffBlocks.discard
    monkeypatch.setattr(GeoTiffBlocks, "discard", lambda blocks: discarded.append(discard(blocks)))

    def failing():
        yield from parts()[:-1]
        raise error

    with pytest.raises(error):
        joined(failing(), GRID, folder=tmp_path)
    assert discarded == [None]
    assert not list(tmp_path.iterdir())


def test_finish_makes_the_result_of_joined_values():
    """What finish returns is the result, its names and nodata included."""

    def finish(values: RasterOutput) -> RasterOutput:
        assert (values.nodata, values.band_names) == (-1, ("x", "y"))
        return RasterOutput(values.array.sum(axis=0, keepdims=True).astype("int32"), nodata=-7, band_names=["sum"])

    tiles = parts(np.concatenate([SCENE, SCENE]), HALF, nodata=-1.0, band_names=["x", "y"])
    raster = joined(tiles, GRID, finish=finish)
    assert (raster.nodata, raster.band_names) == (-7, ("sum",))
    np.testing.assert_array_equal(raster.array[0], np.where(HALF, 2 * SCENE[0], -7))


def test_finish_must_keep_the_pixels(tmp_path):
    """A finish that changes the size of a rectangle is refused, and nothing is left."""
    with pytest.raises(DecodeError, match="finish made 1 x 1 pixels of"):
        joined(parts(), GRID, finish=lambda values: RasterOutput(values.array[:, :1, :1]), folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_finish_must_give_alike_results():
    """Rectangles whose results differ in what is no pixel are refused."""
    with pytest.raises(DecodeError, match="differ in nodata: 0 in the first that came, 10 in another"):
        joined(parts(), GRID, finish=lambda values: RasterOutput(values.array, nodata=int(values.array[0, 0, 0])))
    with pytest.raises(DecodeError, match="differ in dtype"):
        joined(parts(), GRID, finish=lambda one: RasterOutput(one.array.astype("f8" if one.width > 1 else "f4")))


def test_tiles_are_not_kept():
    """Of a tile that was taken at most copies of its edges are left."""
    kept = []

    def coming():
        for index, tile in enumerate(pieces(SCENE, GRID)):
            array = tile.copy()
            kept.append(weakref.ref(array))
            yield Part(index, GRID.window(index), RasterOutput(array))
            del array
            assert sum(one() is not None for one in kept) <= 1

    joined(coming(), GRID)
    assert len(kept) == len(GRID)


@pytest.mark.heavy
def test_memory_does_not_grow_with_the_scene():
    """Four times as many rows of tiles take no more memory."""

    def peak(rows: int) -> int:
        grid = TileGrid(rows, 600, 256, 32)
        tile = np.ones((2, 256, 256), "float32")
        coming = (Part(index, grid.window(index), RasterOutput(tile)) for index in range(len(grid)))
        tracemalloc.start()
        try:
            joined(coming, grid).close()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(2048), peak(8192)
    assert large < small + 2**20  # the pixels are 60 MiB more


def test_nan_as_nodata_is_alike_in_all_tiles():
    """NaN equals NaN where tiles are compared, wherever it comes from."""
    tiles = [Part(index, GRID.window(index), other(nodata=float("nan"))) for index in range(len(GRID))]
    assert np.isnan(joined(tiles, GRID).nodata)
