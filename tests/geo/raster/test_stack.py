"""Rasters of several grids read as one, with rasterio's WarpedVRT as the judge of what is resampled."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from geotiffs_by_rasterio import geotiff
from rasterio.control import GroundControlPoint
from rasterio.enums import Resampling
from rasterio.io import MemoryFile
from rasterio.transform import Affine
from rasterio.vrt import WarpedVRT
from rasterio.warp import reproject

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Raster, Window
from vllm_mmout.geo.raster.stack.stack import Layer, OpenStack

CRS = "EPSG:32632"
LEFT, TOP = 399960, 5300040
SIDE = 10980 // 61
"""Pixels of 10 m: a Sentinel-2 tile divided by 61."""


def at(pixel, left=LEFT, top=TOP):
    """The transform of a grid of square pixels."""
    return Affine(pixel, 0, left, 0, -pixel, top)


def values(height, width=None, dtype="uint16", seed=0, bands=1):
    """Random pixels [bands, height, width], none of them 0."""
    return np.random.default_rng(seed).integers(1, 200, (bands, height, width or height)).astype(dtype)


def band(pixel=10, side=None, seed=0, **options):
    """The bytes of a band of square pixels, tiled."""
    side = SIDE * 10 // pixel if side is None else side
    array = options.pop("array", None)
    array = values(side, seed=seed) if array is None else array
    place = {"crs": CRS, "transform": at(pixel)} | options.pop("place", {})
    tiled = {"tiled": True, "blockxsize": 32, "blockysize": 16, "compress": "deflate"}
    return geotiff(array, **tiled, **place, **options)


@pytest.fixture
def stacked():
    """Makes a stack of the first bands of files and closes it."""
    with ExitStack() as files:

        def stack(*sources, **options):
            rasters = [files.enter_context(open_raster(source)) for source in sources]
            return OpenStack([Layer(raster, 0, f"B{number}") for number, raster in enumerate(rasters)], "s", **options)

        yield stack


SENTINEL = {pixel: band(pixel, seed=pixel) for pixel in (10, 20, 60)}


def warped(data, resampling, transform, size, **options):
    """A band on another grid, by GDAL."""
    with MemoryFile(data) as memory, memory.open() as file:
        grid = {"crs": CRS, "transform": transform, "height": size[0], "width": size[1], **options}
        with WarpedVRT(file, resampling=Resampling[resampling], **grid) as vrt:
            return vrt.read(1)


@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
@pytest.mark.parametrize("order", [(10, 20, 60), (60, 20, 10)], ids=str)
def test_three_resolutions_lie_on_the_finest_grid(stacked, resampling, order):
    """10, 20 and 60 m, in tiles of an odd size, each equal to what WarpedVRT makes of the whole, within one unit."""
    stack = stacked(*(SENTINEL[pixel] for pixel in order), resampling=resampling)
    assert stack.size == (SIDE, SIDE)
    assert tuple(stack.georeference.transform) == tuple(at(10))[:6]
    wanted = np.stack([warped(SENTINEL[pixel], resampling, at(10), stack.size) for pixel in order]).astype(int)
    starts = range(0, SIDE, 37)
    tiles = [Window(row, col, min(37, SIDE - row), min(37, SIDE - col)) for row in starts for col in starts]
    for window, raster in zip(tiles, stack.windows(tiles), strict=True):
        assert np.abs(raster.array - wanted[:, window.rows, window.cols]).max() <= (resampling == "bilinear")
        assert raster.georeference.transform[2] == LEFT + 10 * window.col
    assert stack.decoded.tolist() == [1] * len(stack.decoded), "each segment is decoded, and once"


def test_of_equally_fine_grids_the_first_counts(stacked):
    """A band that lies half a pixel beside it is resampled to it."""
    beside = band(place={"transform": at(10, LEFT - 5, TOP + 5)})
    first = stacked(SENTINEL[10], beside, resampling="bilinear")
    assert first.georeference.transform[2] == LEFT
    wanted = warped(beside, "bilinear", at(10), first.size)[: SIDE - 1, : SIDE - 1]  # beyond, GDAL has nothing
    assert np.abs(first.read().array[1, : SIDE - 1, : SIDE - 1].astype(int) - wanted).max() <= 1
    assert stacked(beside, SENTINEL[10]).georeference.transform[2] == LEFT - 5


@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
def test_the_panchromatic_band_of_landsat(stacked, resampling):
    """15 m beside 30 m, shifted by half of its own pixels: every second middle lies on a border of two pixels."""
    sharp, broad = band(15, 121, 1, place={"transform": at(15, LEFT + 7.5, TOP - 7.5)}), band(30, 62, 2)
    stack = stacked(broad, sharp, resampling=resampling)
    assert stack.size == (121, 121)
    wanted = warped(broad, resampling, at(15, LEFT + 7.5, TOP - 7.5), stack.size).astype(int)
    assert np.abs(stack.read().array[0] - wanted).max() <= (resampling == "bilinear")


@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
def test_up_to_a_pixel_may_be_missing_at_each_side(stacked, resampling):
    """There the last pixels are repeated."""
    inner = values(SIDE // 6 - 2, seed=3)
    small = band(60, array=inner, place={"transform": at(60, LEFT + 60, TOP - 60)})
    found = stacked(SENTINEL[10], small, resampling=resampling).read(bands=[2]).array[0]
    np.testing.assert_array_equal(found[[0, 5, -6, -1]][:, [0, -1]], inner[0][[0, 0, -1, -1]][:, [0, -1]])


OTHER_GRIDS = {
    "no system": ({"crs": None}, 90, "different coordinate systems"),
    "another place, another zone": ({"crs": "EPSG:32635"}, 90, "no ground in common"),
    "another body": ({"crs": "IAU_2015:49910"}, 90, "and one cannot represent the area of the other"),
    "another place, turned": ({"transform": at(20, LEFT + 9000) @ Affine.rotation(1)}, 90, "no ground in common"),
    "more than a pixel to the right": ({"transform": at(20, LEFT + 21)}, 90, "do not cover the same ground"),
    "more than a pixel below": ({"transform": at(20, LEFT, TOP - 21)}, 90, "do not cover the same ground"),
    "more than a pixel too small": ({}, 88, "do not cover the same ground"),
    "without a place": ({"crs": None, "transform": None}, 90, "differ in size"),
}


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize(("place", "side", "why"), OTHER_GRIDS.values(), ids=OTHER_GRIDS)
def test_grids_that_do_not_match_are_refused(tmp_path, stacked, place, side, why):
    """With both grids in the message, and what can be done."""
    for name, data in (("fine.tif", SENTINEL[10]), ("other.tif", band(20, side, place=place))):
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        stacked(tmp_path / "fine.tif", tmp_path / "other.tif")
    message = str(caught.value)
    assert why in message
    assert f"fine.tif: 180 x 180 pixels of -10 x 10, EPSG:32632, upper left corner x={LEFT}, y={TOP}" in message
    assert f"other.tif: {side} x {side} pixels" in message
    assert "gdalwarp" in message


STRIP = Affine(0.004, 0, 0, 0, -0.004, 47.844)
ELSEWHERE = {
    "the next zone": (CRS, at(10), "EPSG:32633", Affine(20, 0, -48_500, 0, -20, 5_325_100), (60, 110)),
    "the next zone, coarse": (CRS, at(10), "EPSG:32633", Affine(90, 0, -48_900, 0, -90, 5_325_100), (30, 15)),
    "longitudes": (CRS, at(10), "EPSG:4326", Affine(2.7e-4, 0, 7.664, 0, -1.8e-4, 47.845), (60, 100)),
    "longitudes from 0 to 360": ("EPSG:32630", at(10), "EPSG:4326", STRIP, (3, 90_000)),
    "the antimeridian": ("EPSG:32601", at(10, 274_700, 5_303_300), "EPSG:4326", STRIP @ Affine.translation(-45_000, 0),
                         (3, 90_000)),
    "a map of equal areas": (CRS, at(10), "EPSG:3035", Affine(260, 0, 4_100_100, 0, -260, 2_800_000), (300, 200)),
    "turned": (CRS, at(10), CRS, at(20) @ Affine.rotation(9), (90, 90)),
    "upside down, mirrored and turned": (CRS, at(10), CRS, Affine(0, -20, LEFT + 1700, 20, 0, TOP - 1800), (90, 90)),
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("case", "resampling"),
    [
        pytest.param(case, name, marks=[pytest.mark.slow] if number and number % 2 == turn else [])
        for number, case in enumerate(ELSEWHERE)
        for turn, name in enumerate(("nearest", "bilinear"))
    ],
)
def test_other_systems_and_axes_are_what_gdal_makes_of_them(stacked, case, resampling):
    """Tile by tile, as it warps the whole, also as WarpedVRT; what the file has not is no observation."""
    own, fine, crs, transform, size = ELSEWHERE[case]
    array = values(*size, seed=9)
    array[0, ::7, ::5] = 0
    other = band(array=array, place={"crs": crs, "transform": transform}, nodata=0)
    stack = stacked(band(place={"crs": own, "transform": fine}), other, resampling=resampling)
    assert (stack.size, stack.georeference.crs) == ((SIDE, SIDE), own)
    wanted = np.zeros(stack.size, array.dtype)
    grids = {"src_crs": crs, "src_transform": transform, "dst_crs": own, "dst_transform": fine}
    reproject(array[0], wanted, src_nodata=0, tolerance=0, resampling=Resampling[resampling], **grids)
    assert 100 < (wanted == 0).sum() < wanted.size - 1000
    found, valid = np.zeros_like(wanted), np.zeros(wanted.shape, bool)
    tiles = [Window(row, col, min(37, SIDE - row), min(37, SIDE - col)) for row in range(0, SIDE, 37)
             for col in range(0, SIDE, 37)]  # fmt: skip
    for window, raster in zip(tiles, stack.windows(tiles), strict=True):
        found[window.rows, window.cols] = raster.array[1]
        seen = raster.valid()
        valid[window.rows, window.cols] = True if seen is None else seen
    assert stack.decoded.max() <= 1
    # Places are rounded to parts of a pixel, and to others in each tile: by WarpedVRT, and by rasterio 1.4 always.
    few = 0 if crs == own else 0.003
    limit = 2 if resampling == "bilinear" else 0
    assert (valid != (wanted != 0)).mean() <= few
    assert (np.abs(found.astype(int) - wanted)[valid & (wanted != 0)] > limit).mean() <= few
    if "360" not in case:  # longitudes above 180 are none to WarpedVRT
        virtual = warped(other, resampling, fine, stack.size, crs=own)
        assert (np.abs(np.where(valid, found, 0).astype(int) - virtual) > limit).mean() <= 0.003


def test_the_finest_is_the_finest_on_the_ground(stacked):
    """Degrees are no finer than metres; of equally fine maps the first counts."""
    degrees = band(array=values(40), place={"crs": "EPSG:4326", "transform": Affine(0.001, 0, 7.66, 0, -0.001, 47.85)})
    zone = band(array=values(200), place={"crs": "EPSG:32633", "transform": at(10, -48_500, 5_325_100)})
    assert stacked(degrees, SENTINEL[20]).georeference.crs == CRS
    assert stacked(degrees, zone, SENTINEL[10]).georeference.crs == "EPSG:32633"
    assert stacked(SENTINEL[10], zone).georeference.crs == CRS


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
def test_a_grid_that_begins_where_longitudes_do(stacked, resampling):
    """Degrees from 0, 0 downwards: rasterio takes that transform for none where it stands for itself."""
    world = geotiff(values(6, seed=1), crs="EPSG:4326", transform=Affine(1, 0, 0, 0, -1, 0))
    metres = Affine(50_000, 0, 60_000, 0, -50_000, -60_000)
    stack = stacked(geotiff(values(8), crs="EPSG:3857", transform=metres), world, resampling=resampling)
    with MemoryFile(world) as memory, memory.open() as file:
        grid = {"crs": "EPSG:3857", "transform": metres, "height": 8, "width": 8}
        with WarpedVRT(file, resampling=Resampling[resampling], **grid) as vrt:
            wanted = vrt.read(1)
    assert np.abs(stack.read().array[1].astype(int) - wanted).max() <= (resampling == "bilinear")


def test_any_type_of_pixel_is_brought_to_another_grid():
    """Nearest, digit by digit; bilinear, also the two parts of complex numbers."""
    coarse, fine = (Georeference(CRS, (pixel, 0, LEFT, 0, -pixel, TOP)) for pixel in (20.0, 10.0))
    real, imaginary = np.random.default_rng(2).random((2, 1, 9, 9)).astype(np.float32)

    def brought(array, resampling):
        rasters = [Raster(np.ones((1, 18, 18), array.dtype), georeference=fine), Raster(array, georeference=coarse)]
        layers = [Layer(open_raster(raster), 0) for raster in rasters]
        return OpenStack(layers, "s", resampling=resampling).read(bands=[2]).array

    whole = (real + 1j * imaginary).astype(np.complex64)
    parts = brought(real, "bilinear") + 1j * brought(imaginary, "bilinear")
    np.testing.assert_allclose(brought(whole, "bilinear"), parts, rtol=1e-6)
    for array in (whole, np.arange(81).reshape(1, 9, 9) + 2**62, real > 0.5, real.astype(np.float16)):
        np.testing.assert_array_equal(brought(array, "nearest"), array.repeat(2, 1).repeat(2, 2), strict=True)


POINTS = [GroundControlPoint(row, col, 10 + col / 9, 50 - row / 7, 3) for row in (0, 40) for col in (5, 90.5)]


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_without_a_transform_places_must_be_equal(stacked):
    """Ground control points, or nothing at all, are placed alike in equal sizes only."""
    nowhere, points = {}, {"crs": "EPSG:4326", "gcps": POINTS}
    for place in (nowhere, points):
        stack = stacked(geotiff(values(9), **place), geotiff(values(9, seed=1), **place))
        np.testing.assert_array_equal(stack.read().array, np.concatenate([values(9), values(9, seed=1)]))
    with pytest.raises(InputError, match=r"different georeferences.*without a georeference.*4 ground control points"):
        stacked(geotiff(values(9)), geotiff(values(9), **points))
    with pytest.raises(InputError, match="have different georeferences"):
        stacked(geotiff(values(9), crs="EPSG:4326", gcps=POINTS[:3]), geotiff(values(9), **points))
    with pytest.raises(InputError, match=r"differ in size.*9 x 9 pixels.*8 x 9 pixels"):
        stacked(geotiff(values(9)), geotiff(values(8, 9)))


def test_digits_that_are_missing_are_no_shift(stacked):
    """Pixel sizes that were written with some digits only coincide: nothing is resampled."""
    exact, rounded = (Affine(1 / n, 0, 10, 0, -1 / n, 50) for n in (3600, 3600.00003))
    arrays = [values(300, 400, "float32", seed) for seed in (0, 1)]
    files = [
        geotiff(array, crs="EPSG:4326", transform=transform)
        for array, transform in zip(arrays, (exact, rounded), strict=True)
    ]
    stack = stacked(*files, resampling="bilinear")
    np.testing.assert_array_equal(stack.read().array, np.concatenate(arrays))


def test_one_nodata_is_that_of_the_stack(stacked):
    """So the request may still name another one; NaN equals NaN."""
    for nodata in (7, float("nan")):
        files = [band(pixel, array=values(1800 // pixel, dtype="float32"), nodata=nodata) for pixel in (10, 20)]
        assert str(stacked(*files).nodata) == str(float(nodata))
    assert stacked(SENTINEL[10], SENTINEL[20]).nodata is None


def test_a_value_that_is_nodata_elsewhere_is_an_observation(stacked):
    """Each file's own nodata masks its own pixels alone."""
    array = np.array([[[1, 7, 9]]], np.uint16)
    files = [geotiff(array, nodata=nodata, crs=CRS, transform=at(10)) for nodata in (7, 9, None)]
    stack = stacked(*files)
    assert stack.nodata is None
    assert stack.read().valid().tolist() == [[True, False, False]]
    assert stack.read(bands=[2]).valid().tolist() == [[True, True, False]]
    assert stack.read(bands=[3]).valid() is None
    said = stacked(*files, nodata=1)
    assert said.nodata == 1
    assert said.read().valid(1).tolist() == [[False, True, True]]


@pytest.mark.parametrize("nodata", [-3.4028235e38, -3.402826e38])
def test_the_largest_float_as_nodata_may_have_fewer_digits(stacked, nodata):
    """Of all files alike, also where a coarser one is resampled."""
    fine, coarse = values(SIDE, dtype="float32"), values(SIDE // 2, dtype="float32")
    coarse[0, :10] = np.finfo("float32").min
    files = [band(10, array=fine), band(20, array=coarse)]
    found = stacked(*files, nodata=nodata, resampling="bilinear").read()
    assert found.nodata == np.finfo("float32").min
    hidden = np.zeros((SIDE, SIDE), bool)
    hidden[:20] = True
    np.testing.assert_array_equal(found.valid(), ~hidden)


def test_a_mean_is_no_nodata_by_chance(stacked):
    """A mean that equals nodata moves to the value beside it, as GDAL has it."""
    pair = np.array([[[1, 3]]], np.uint16)
    files = [
        geotiff(np.full((1, 4, 8), 9, np.uint16), nodata=2, crs=CRS, transform=at(10)),
        geotiff(pair, nodata=2, crs=CRS, transform=at(40)),
    ]
    found = stacked(*files, resampling="bilinear").read(bands=[2])
    assert found.valid() is None
    assert set(found.array.ravel().tolist()) == {1, 3}


def test_nan_is_never_a_part_of_a_mean(stacked):
    """Also where the file does not announce it: the gap neither grows nor shrinks."""
    array = values(18, dtype="float32")
    array[0, 3, 4] = np.nan
    grid = {"array": array, "place": {"transform": at(100)}}
    silent, told = (
        stacked(SENTINEL[10], band(100, **grid, nodata=nodata), resampling="bilinear").read()
        for nodata in (None, np.nan)
    )
    wanted = np.ones((180, 180), bool)
    wanted[30:40, 40:50] = False
    np.testing.assert_array_equal(silent.valid(), wanted)
    np.testing.assert_array_equal(told.valid(), wanted)
    np.testing.assert_array_equal(silent.array[:, wanted], told.array[:, wanted])


def test_masks_of_files_hold_for_the_stack(stacked):
    """A mask of any of them, and that of an alpha band."""
    mask = np.ones((18, 18), bool)
    mask[2, 3] = False
    with_alpha = values(180, bands=2)
    with_alpha[1] = 255
    with_alpha[1, :, 100] = 0
    masked = geotiff(values(18), mask=mask, crs=CRS, transform=at(100))
    alpha = geotiff(with_alpha, crs=CRS, transform=at(10), alpha="yes")
    wanted = np.ones((180, 180), bool)
    wanted[20:30, 30:40] = False
    wanted[:, 100] = False
    stack = stacked(alpha, masked)
    assert open_raster(alpha).alpha == 2
    np.testing.assert_array_equal(stack.read().valid(), wanted)
    assert stack.read(bands=[1]).valid() is not None


def test_types_are_joined_and_metadata_that_all_share_stay(stacked):
    """The dtype holds the values of all; the date is that of the first."""

    def tagged(dtype, **tags):
        with MemoryFile() as memory:
            profile = {"count": 1, "height": 2, "width": 2, "dtype": dtype, "crs": CRS, "transform": at(10)}
            with memory.open(driver="GTiff", **profile) as file:
                file.write(values(2, dtype=dtype))
                file.update_tags(**tags)
            return memory.read()

    stack = stacked(
        tagged("uint8", SENSOR="MSI", BAND="2", TIFFTAG_DATETIME="2020:01:01 10:00:00"),
        tagged("int16", SENSOR="MSI", BAND="3", TIFFTAG_DATETIME="2020:01:02 10:00:00"),
    )
    assert stack.dtype == stack.read().array.dtype == np.int16
    kept = {key: text for key, text in stack.metadata.items() if key != "AREA_OR_POINT"}
    assert kept == {"SENSOR": "MSI", "TIFFTAG_DATETIME": "2020:01:01 10:00:00"}
    assert stack.descriptions == ("B0", "B1")


def test_what_is_decoded_at_once_is_that_of_all(stacked):
    """A block of 60 m pixels is large on the 10 m grid, and holds many of the others'."""
    stack = stacked(SENTINEL[10], SENTINEL[60])
    assert stack.block == (16 * 6, 32 * 6)
    assert stack.block_bytes == 36 * 16 * 32 * 2 + 16 * 32 * 2


def test_bands_of_files_are_read_in_any_order(stacked):
    """Several bands of one file, one twice, and those of another between them."""
    first, second = values(6, bands=3), values(6, bands=2, seed=1)
    rasters = [open_raster(Raster(array=array)) for array in (first, second)]
    stack = OpenStack([Layer(rasters[0], 2), Layer(rasters[1], 1), Layer(rasters[0], 0)], "two arrays")
    np.testing.assert_array_equal(stack.read().array, [first[2], second[1], first[0]])
    np.testing.assert_array_equal(
        stack.read(Window(1, 2, 3, 4), [3, 2, 3]).array[:, 0, 0], [first[0, 1, 2], second[1, 1, 2], first[0, 1, 2]]
    )


def test_all_files_are_closed_with_the_stack(stacked, tmp_path):
    """And reading says so."""
    stack = stacked(SENTINEL[10], SENTINEL[20])
    windows = stack.windows([Window(0, 0, 5, 5), Window(90, 90, 5, 5)])
    next(windows)
    stack.close()
    stack.close()
    with pytest.raises(InputError, match="s is closed"):
        stack.read()
    with pytest.raises(InputError, match="closed"):
        next(windows)


@pytest.mark.heavy
def test_several_threads_read_one_stack(stacked):
    """Each gets its own windows; none is left when a reader stops in the middle."""
    stack = stacked(*SENTINEL.values(), resampling="bilinear")
    windows = [Window(row, col, 40, 50) for row in (0, 70, 140) for col in (0, 60, 130)]
    whole = stack.read().array
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(stack.read, windows * 3))
    for window, raster in zip(windows * 3, found, strict=True):
        np.testing.assert_array_equal(raster.array, whole[:, window.rows, window.cols])
    reading = stack.windows(windows)
    next(reading)
    reading.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("mmout-stack")] == []


def test_damage_names_the_file(stacked, tmp_path):
    """Of those that make up the window, and where windows before it are whole."""
    spoiled = bytearray(SENTINEL[20])
    spoiled[-300:] = b"\xff" * 300
    (tmp_path / "B05.tif").write_bytes(spoiled)
    reading = stacked(SENTINEL[10], tmp_path / "B05.tif").windows([Window(0, 0, 9, 9), Window(170, 170, 9, 9)])
    next(reading)
    with pytest.raises(InputError, match=r"B05\.tif"):
        next(reading)
