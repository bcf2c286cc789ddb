"""RasterOutput: pictures and files of rasters, with rasterio and Pillow as oracles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from rasterio.crs import CRS
from rasterio.transform import Affine

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo import Georeference
from vllm_mmout.outputs import RasterOutput, Source
from vllm_mmout.outputs.formats import FORMATS

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

PLACE = Georeference(crs="EPSG:32614", transform=(30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0))
PALETTE = np.array([[10, 20, 30], [0, 0, 255]], "uint8")
IDS = np.array([[[0, 1, 1], [255, 0, 7]]], "uint8")
IDS.setflags(write=False)


@dataclass
class Rectangle:
    row: int
    col: int
    height: int
    width: int


def classes(**options: object) -> RasterOutput:
    return RasterOutput(
        IDS, nodata=255, class_names=["land", "water"], palette=PALETTE, band_names=("classes",), **options
    )


def test_a_geotiff_holds_all_that_is_known(tmp_path: Path) -> None:
    """With rasterio one reads ids, place, nodata, names, colours and items from the file."""
    output = classes(georeference=PLACE, metadata={"SENSOR": "MSI"})
    path = output.save(tmp_path / "mask.tif")
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(file.read(), IDS, strict=True)
        assert (file.crs, tuple(file.transform)[:6]) == (CRS.from_epsg(32614), PLACE.transform)
        assert (file.nodata, file.descriptions) == (255, ("classes",))
        assert file.colormap(1)[1][:3] == (0, 0, 255)
        assert file.tags(1)["CLASS_1"] == "water"
        assert file.tags()["SENSOR"] == "MSI"
    assert path.read_bytes() == output.to_bytes("tif") == output.to_bytes()
    assert (output.crs, output.transform) == ("EPSG:32614", PLACE.transform)


def test_classes_are_shown_in_their_colours_and_nodata_is_transparent() -> None:
    """Ids take the palette's colours, ids beyond it are black, nodata is clear."""
    image = classes().image
    assert image.mode == "RGBA"
    pixels = np.asarray(image)
    np.testing.assert_array_equal(pixels[0, :, :3], PALETTE[[0, 1, 1]])
    np.testing.assert_array_equal(pixels[..., 3], [[255, 255, 255], [0, 255, 255]])
    np.testing.assert_array_equal(pixels[1, 2], [0, 0, 0, 255])


def test_without_nodata_the_picture_has_no_alpha() -> None:
    """Where every pixel is valid the picture is plain RGB."""
    assert RasterOutput(IDS, palette=PALETTE).image.mode == "RGB"


@pytest.mark.parametrize("dtype", ["int16", "int64", "uint16", "bool"])
def test_ids_of_any_integer_take_colours(dtype: str) -> None:
    """Negative ids and ids beyond the palette are black."""
    ids = (
        np.array([[[0, 1], [-1, 30000]]]).astype(dtype)
        if dtype != "bool"
        else np.array([[[False, True], [True, False]]])
    )
    pixels = np.asarray(RasterOutput(ids, palette=PALETTE).image)
    np.testing.assert_array_equal(pixels[0], PALETTE)
    if dtype != "bool":
        assert not pixels[1].any()


def test_floats_are_stretched_between_their_valid_extremes() -> None:
    """The smallest valid value is black, the largest white; nodata and NaN neither count nor show."""
    array = np.array([[[-9999.0, 2.0, 4.0], [math.nan, 3.0, 2.5]]], "float32")
    pixels = np.asarray(RasterOutput(array, nodata=-9999.0).image)
    np.testing.assert_array_equal(pixels[..., 1], [[0, 255, 255], [0, 255, 255]])
    np.testing.assert_array_equal(pixels[..., 0][pixels[..., 1] > 0], [0, 255, 128, 64])


@pytest.mark.parametrize("ends", [(-1.7e308, 1.7e308), (0.0, 2.3e-309), (-4e-320, 4e-320)])
def test_the_widest_and_the_narrowest_range_are_stretched(ends: tuple[float, float]) -> None:
    """Ranges that float64 cannot hold, or whose inverse it cannot hold, go from black to white as well."""
    pixels = np.asarray(RasterOutput(np.array([[ends]])).image)
    np.testing.assert_array_equal(pixels, [[0, 255]])


@pytest.mark.parametrize("value", [0.0, -7.5, 5e-324, math.inf, math.nan])
def test_a_raster_of_one_value_is_black(value: float) -> None:
    """Where there is nothing to stretch, the picture is black."""
    pixels = np.asarray(RasterOutput(np.full((1, 2, 2), value)).image.convert("LA"))
    assert not pixels[..., 0].any()


def test_three_bytes_are_a_picture_as_they_are() -> None:
    """Three bands of uint8 are red, green and blue without any stretch."""
    rgb = np.random.default_rng(0).integers(50, 60, (3, 5, 6)).astype("uint8")
    np.testing.assert_array_equal(np.asarray(RasterOutput(rgb).image), np.moveaxis(rgb, 0, 2))


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from(["uint8", "int32", "uint64", "float32", "float64", "bool"]),
        st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
    )
)
def test_every_raster_has_a_picture_of_its_size(array: np.ndarray) -> None:
    """Infinities, huge integers and constants are all shown, in every format of pictures."""
    output = RasterOutput(array)
    for name in (form.name for form in FORMATS.values() if form.picture):
        with Image.open(BytesIO(output.to_bytes(name))) as image:
            assert image.size == (output.width, output.height)


def test_jpeg_shows_nodata_black() -> None:
    """JPEG has no transparency: what is not there is black."""
    ids = np.zeros((1, 32, 32), "uint8")
    ids[:, :, 16:] = 1
    with Image.open(
        BytesIO(RasterOutput(ids, nodata=1, palette=np.full((2, 3), 200, "uint8")).to_bytes("jpeg"))
    ) as image:
        pixels = np.asarray(image).astype(int)
    assert abs(pixels[:, :12] - 200).max() < 4
    assert pixels[:, 20:].max() < 4


def test_an_npz_holds_arrays_by_name(tmp_path: Path) -> None:
    """NumPy alone reads pixels, nodata, place, names and colours."""
    with np.load(classes(georeference=PLACE).save(tmp_path / "mask.npz")) as arrays:
        np.testing.assert_array_equal(arrays["array"], IDS, strict=True)
        assert arrays["nodata"] == 255
        assert str(arrays["crs"]) == "EPSG:32614"
        np.testing.assert_array_equal(arrays["transform"], PLACE.transform)
        assert list(arrays["class_names"]) == ["land", "water"]
        np.testing.assert_array_equal(arrays["palette"], PALETTE)
    with np.load(BytesIO(RasterOutput(IDS).to_bytes("npz"))) as arrays:
        assert list(arrays) == ["array"]


def test_placed_lays_the_result_on_its_input() -> None:
    """Georeference and items are the input's, its own items win, and the original is as it was."""
    output = classes(metadata={"MODEL": "flood", "SENSOR": "mine"})
    items = {"SENSOR": "MSI", "TIFFTAG_DATETIME": "2024:05:01 10:11:12", "TIFFTAG_SOFTWARE": "camera 1"}
    placed = output.placed(
        Source(georeference=PLACE, valid=np.array([[True, False, True], [True, True, True]]), metadata=items)
    )
    assert placed.georeference is PLACE
    assert placed.metadata == {"SENSOR": "mine", "TIFFTAG_DATETIME": "2024:05:01 10:11:12", "MODEL": "flood"}
    np.testing.assert_array_equal(placed.array, [[[0, 255, 1], [255, 0, 7]]])
    assert (placed.class_names, placed.band_names, placed.nodata) == (output.class_names, output.band_names, 255)
    np.testing.assert_array_equal(placed.palette, PALETTE)
    np.testing.assert_array_equal(output.array, [[[0, 1, 1], [255, 0, 7]]])
    assert output.georeference is None


def test_placed_leaves_the_array_of_the_original_alone() -> None:
    """Masking works on a copy, also where the original could be written to."""
    output = RasterOutput(np.ones((1, 1, 2), "uint8"), nodata=0)
    np.testing.assert_array_equal(output.placed(Source(valid=np.array([[True, False]]))).array, [[[1, 0]]])
    np.testing.assert_array_equal(output.array, [[[1, 1]]])


@pytest.mark.parametrize(
    ("array", "nodata"),
    [
        (np.array([[[1.5, 2.5]]], "float32"), math.nan),
        (np.array([[[1, 2]]], "uint8"), 255),
        (np.array([[[1, 2]]], "int64"), 2**63 - 1),
        (np.array([[[True, True]]]), 255),
    ],
)
def test_a_result_without_nodata_gets_one_that_is_no_value(array: np.ndarray, nodata: float) -> None:
    """NaN for floats, the largest integer else; bool becomes uint8 so that there is room for it."""
    placed = RasterOutput(array).placed(Source(valid=np.array([[True, False]])))
    np.testing.assert_equal(placed.nodata, nodata)
    np.testing.assert_array_equal(placed.valid, [[True, False]])
    assert placed.array[0, 0, 0] == array[0, 0, 0]
    with rasterio.open(BytesIO(placed.to_bytes("tif"))) as file:
        np.testing.assert_array_equal(file.dataset_mask() > 0, [[True, False]])


def test_a_taken_value_cannot_become_nodata() -> None:
    """Where the largest integer is a value of the result, the error says so."""
    with pytest.raises(InputError, match="without a nodata value, and uses 255"):
        RasterOutput(IDS).placed(Source(valid=np.zeros((2, 3), bool)))


def test_where_all_is_valid_nothing_changes() -> None:
    """Without a hole in the input there is no nodata to invent and no array to copy."""
    output = RasterOutput(IDS)
    for valid in (None, np.ones((2, 3), bool)):
        placed = output.placed(Source(georeference=PLACE, valid=valid))
        assert placed.nodata is None
        assert placed.array is output.array


@settings(max_examples=60)
@given(st.tuples(*[st.integers(1, 40)] * 2), st.tuples(*[st.integers(1, 40)] * 2))
def test_a_result_of_another_size_covers_the_extent_of_its_input(size: tuple[int, int], own: tuple[int, int]) -> None:
    """Rasterio reads from the file the very corners of the input, for a finer result and for a coarser one."""
    placed = RasterOutput(np.zeros((1, *own), "uint8")).placed(Source(size=size, georeference=PLACE))
    with rasterio.open(BytesIO(placed.to_bytes("tif"))) as file:
        assert tuple(file.bounds) == pytest.approx(rasterio.transform.array_bounds(*size, Affine(*PLACE.transform)))
        assert file.shape == own


@settings(max_examples=100)
@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12)), st.tuples(*[st.integers(1, 40)] * 2))
def test_the_mask_of_another_size_is_that_of_the_nearest_pixels(valid: np.ndarray, own: tuple[int, int]) -> None:
    """The input's mask is stretched as by Pillow, but where a centre lies between two pixels and either is nearest."""
    placed = RasterOutput(np.ones((1, *own), "uint8"), nodata=0).placed(Source(valid=valid))
    expected = Image.fromarray(valid.astype("uint8")).resize(own[::-1], Image.Resampling.NEAREST)
    rows, cols = ((2 * np.arange(new) + 1) * old % (2 * new) != 0 for old, new in zip(valid.shape, own, strict=True))
    single = np.ix_(rows, cols)
    np.testing.assert_array_equal(placed.array[0][single], np.asarray(expected)[single])


def test_read_gives_a_window() -> None:
    """A window is rows and columns of all bands; none is everything."""
    output = RasterOutput(np.arange(24).reshape(2, 3, 4))
    np.testing.assert_array_equal(output.read(Rectangle(1, 2, 2, 1)), output.array[:, 1:3, 2:3])
    assert output.read() is output.array


@pytest.mark.parametrize("window", [(-1, 0, 1, 1), (0, 0, 4, 1), (0, 3, 1, 2), (0, 0, 0, 1)])
def test_a_window_outside_is_refused(window: tuple[int, int, int, int]) -> None:
    """A window that is empty or reaches over the edge is an error, never a smaller array."""
    with pytest.raises(InputError, match="is not within the raster of 3 x 4"):
        RasterOutput(np.zeros((2, 3, 4))).read(Rectangle(*window))


def test_it_shows_itself() -> None:
    """The repr tells shape, dtype, nodata and place; notebooks get a PNG."""
    output = classes(georeference=PLACE)
    assert repr(output) == "RasterOutput(1 x 2 x 3 uint8, nodata=255, EPSG:32614)"
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(output._repr_png_()))), np.asarray(output.image))
    output.close()
    assert output.array.size == 6


@pytest.mark.parametrize(
    ("array", "options", "words"),
    [
        (np.zeros((2, 3)), {}, r"takes numbers \[bands, height, width\], not empty; got float64 \[2, 3\]"),
        (np.zeros((1, 0, 3)), {}, "not empty"),
        (np.array([[["a"]]]), {}, "got <U1"),
        (np.zeros((2, 1, 1)), {"band_names": ["a"]}, "band_names must have one entry per band, 2, got 1"),
        (np.zeros((1, 1, 1)), {"palette": np.zeros((3, 4), "uint8")}, r"palette must be uint8 \[n, 3\]"),
        (np.zeros((1, 1, 1)), {"palette": np.zeros((3, 3))}, "got float64"),
    ],
)
def test_what_is_no_raster_is_refused(array: np.ndarray, options: dict[str, object], words: str) -> None:
    """The error says what came and what is taken."""
    with pytest.raises(InputError, match=words):
        RasterOutput(array, **options)


def test_formats_without_options_refuse_them(tmp_path: Path) -> None:
    """A quality means nothing to a GeoTIFF; nothing is written."""
    with pytest.raises(SaveError, match="tiff has no quality; leave it out, or save as WebP"):
        RasterOutput(IDS).save(tmp_path / "a.tif", quality=3)
    with pytest.raises(SaveError, match=r"known: \.tif, \.tiff, \.png, \.webp, \.jpg, \.jpeg, .*\.npz"):
        RasterOutput(IDS).save(tmp_path / "a.gpkg")
    assert list(tmp_path.iterdir()) == []


def test_more_classes_than_a_colour_table_has_are_saved_without_one(tmp_path: Path) -> None:
    """uint16 ids keep their palette for pictures; the GeoTIFF holds the ids alone."""
    output = RasterOutput(np.full((1, 2, 2), 300, "uint16"), palette=np.full((400, 3), 9, "uint8"))
    assert np.asarray(output.image).max() == 9
    with rasterio.open(output.save(tmp_path / "ids.tif")) as file:
        np.testing.assert_array_equal(file.read(), output.array, strict=True)
