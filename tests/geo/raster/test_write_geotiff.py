"""Writing GeoTIFF: what rasterio makes of it, and what is refused."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from rasterio.enums import ColorInterp
from rasterio.io import MemoryFile

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.opened import open_raster, read_raster
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.writing import GeoTiffBlocks, write_geotiff

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

CLASSES = np.array([[[0, 1], [2, 255]]], "uint8")
COLOURS = np.array([[0, 0, 0], [0, 0, 255], [255, 128, 1]], "uint8")


def written(array: np.ndarray, **options: object) -> bytes:
    buffer = BytesIO()
    write_geotiff(buffer, array, **options)
    return buffer.getvalue()


def items_of(file: rasterio.DatasetReader) -> list[dict[str, str]]:
    """The items of each band, but its statistics."""
    tags = [file.tags(band) for band in file.indexes]
    return [{name: text for name, text in items.items() if not name.startswith("STATISTICS_")} for items in tags]


def test_classes_have_colours_names_and_nodata() -> None:
    """With rasterio one finds the colour table, the class names among the band's items, and the nodata."""
    data = written(
        CLASSES, nodata=255, palette=COLOURS, class_names=["land", "water & ice", "cloud"], band_names=["class"]
    )
    with MemoryFile(data) as memory, memory.open() as file:
        colormap = file.colormap(1)
        assert [colormap[value][:3] for value in range(4)] == [(0, 0, 0), (0, 0, 255), (255, 128, 1), (0, 0, 0)]
        assert items_of(file) == [{"CLASS_0": "land", "CLASS_1": "water & ice", "CLASS_2": "cloud"}]
        assert file.colorinterp == (ColorInterp.palette,)
        assert (file.nodata, file.descriptions) == (255, ("class",))
        np.testing.assert_array_equal(file.read(), CLASSES)
        np.testing.assert_array_equal(file.dataset_mask() > 0, CLASSES[0] != 255)


@pytest.mark.parametrize("nearest", [True, False])
def test_many_bands_have_small_blocks_and_each_its_scale(nearest: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Readers find the scales. Overviews hold single pixels if ``nearest`` says that pixels have no mean."""
    array = np.random.default_rng(0).integers(-127, 128, (21, 520, 24), np.int8)
    data = written(array, scales=[0.5 + band for band in range(21)], nearest=nearest)
    with MemoryFile(data) as memory, memory.open() as file:
        assert file.block_shapes[0] == (256, 256)  # 21 bands of 512 x 512 would be more than 2**22 values
        assert file.scales == tuple(0.5 + band for band in range(21))
        pixels, overview = file.read(), file.read(out_shape=(21, 260, 12))
    np.testing.assert_array_equal(pixels, array)
    assert any((overview == array[:, row::2, col::2]).all() for row, col in np.ndindex(2, 2)) == nearest
    with pytest.raises(SaveError, match="scales must have one entry per band, 21, got 2"):
        written(array, scales=[1.0, 2.0])


def test_colours_span_the_sixteen_bits_of_tiff() -> None:
    """TIFF's colour tables have 65535 for full intensity, whatever readers make of fewer bits."""
    with tifffile.TiffFile(BytesIO(written(CLASSES, palette=COLOURS))) as tiff:
        np.testing.assert_array_equal(tiff.pages[0].colormap[:, 2], [65535, 128 * 257, 257])


def test_texts_with_a_tag_of_their_own_become_that_tag() -> None:
    """The date and the copyright are TIFF tags, other items GDAL's; nobody is named as the software."""
    items = {"TIFFTAG_DATETIME": "2024:05:01 10:11:12", "TIFFTAG_COPYRIGHT": "© Größe", "SENSOR": "MSI"}
    data = written(CLASSES, metadata={**items, "AREA_OR_POINT": "Point"})
    with MemoryFile(data) as memory, memory.open() as file:
        tags = {name: text for name, text in file.tags().items() if "RESOLUTION" not in name}
    assert read_raster(data).metadata == tags == items


@pytest.mark.parametrize("unit", ["Mg/ha", "m³/m³", "<\"W\"/m² & 'more'>", "°C", "%"])
def test_units_are_those_of_the_bands(unit: str) -> None:
    """With rasterio one finds the unit of each band that has one, beside its description."""
    data = written(np.zeros((3, 2, 2), "float32"), units=[None, unit, "m"], band_names=["a", "b", None])
    with MemoryFile(data) as memory, memory.open() as file:
        assert file.units == (None, unit, "m")
        assert file.descriptions == ("a", "b", None)
        assert items_of(file) == [{}, {}, {}]


def test_bool_becomes_0_and_1() -> None:
    """A mask of bool is stored as uint8."""
    mask = np.array([[[True, False]]])
    with MemoryFile(written(mask)) as memory, memory.open() as file:
        np.testing.assert_array_equal(file.read(), mask.astype("uint8"), strict=True)


@pytest.mark.parametrize("dtype", ["float16", ">i2", ">f8"])
def test_other_number_formats_keep_their_values(dtype: str) -> None:
    """Half precision and arrays in the other byte order are written with the values they have."""
    array = np.arange(-6, 6).reshape(2, 2, 3).astype(dtype)
    with MemoryFile(written(array)) as memory, memory.open() as file:
        np.testing.assert_array_equal(file.read(), array)
    np.testing.assert_array_equal(read_raster(written(array)).array, array)


@pytest.mark.parametrize(
    "step", [(slice(None), slice(None, None, -1)), (slice(None), slice(None), slice(None, None, 3))]
)
def test_views_are_written_as_they_look(step: tuple[slice, ...]) -> None:
    """Arrays that are not contiguous in memory are written in the order of their axes."""
    array = np.random.default_rng(0).integers(0, 9, (3, 600, 700)).astype("int32")[step]
    with MemoryFile(written(array)) as memory, memory.open() as file:
        np.testing.assert_array_equal(file.read(), array)


@pytest.mark.parametrize(("dtype", "nodata"), [("uint64", 2**64 - 2), ("int64", -(2**63)), ("int64", 2**53 + 1)])
def test_a_nodata_of_64_bits_keeps_every_digit_in_the_file(dtype: str, nodata: int) -> None:
    """The text in the file is the integer itself, of which rasterio sees the nearest double and GDAL all digits."""
    raster = read_raster(written(np.array([[[nodata, nodata + 1]]], dtype), nodata=nodata))
    assert raster.nodata == nodata
    np.testing.assert_array_equal(raster.valid(), [[False, True]])


def test_four_bytes_are_four_bands() -> None:
    """The fourth band of uint8 is data, not transparency."""
    with MemoryFile(written(np.zeros((4, 5, 5), "uint8"))) as memory, memory.open() as file:
        assert ColorInterp.alpha not in file.colorinterp
        assert file.dataset_mask().all()


@pytest.mark.slow
def test_what_may_need_offsets_of_64_bits_is_written_as_bigtiff(tmp_path: Path) -> None:
    """Two gigabytes of pixels, whatever they are compressed to; both readers read the file."""
    assert written(CLASSES)[2] == 42
    blocks = GeoTiffBlocks(tmp_path, bands=1, height=16384, width=16384, dtype="float64")
    for place in np.ndindex(32, 32):
        blocks.write(*place, np.full((1, 512, 512), place[1], "float64"))
    path = blocks.finish()
    assert path.read_bytes()[2] == 43
    window = (slice(9000, 9001), slice(1000, 1100))
    with rasterio.open(path) as file, open_raster(path) as raster:
        for row in (file.read(1, window=window), raster.read(Window(9000, 1000, 1, 100)).array[0]):
            np.testing.assert_array_equal(row, [[1.0] * 24 + [2.0] * 76])


@pytest.mark.parametrize("nodata", [None, -1.0])
def test_statistics_leave_out_what_is_no_number(nodata: float | None) -> None:
    """NaN does not count, and a band without a number, or with infinite ones, has none."""
    array = np.random.default_rng(0).normal(size=(4, 600, 700)).astype("float32")
    array[0, :100] = np.nan
    array[1] = np.nan
    array[2, 5, 5] = np.inf
    with MemoryFile(written(array, nodata=nodata)) as memory, memory.open() as file:
        tags = [file.tags(band) for band in file.indexes]
    assert (tags[1], tags[2]) == ({}, {})
    for band, percent in ((0, "83.33"), (3, "100")):
        seen = array[band][~np.isnan(array[band])].astype(float)
        assert float(tags[band]["STATISTICS_MEAN"]) == pytest.approx(seen.mean(), rel=1e-9)
        assert float(tags[band]["STATISTICS_STDDEV"]) == pytest.approx(seen.std(), rel=1e-9)
        assert tags[band]["STATISTICS_VALID_PERCENT"] == percent


def test_compression_helps() -> None:
    """A smooth raster is far smaller than its pixels: deflate with the predictor of its dtype."""
    smooth = np.add.outer(np.arange(600.0), np.arange(600.0))[None].astype("float32")
    assert len(written(smooth)) < smooth.nbytes / 8


@pytest.mark.parametrize(
    ("array", "options", "words"),
    [
        (np.zeros((3, 4), "uint8"), {}, r"\[bands, height, width\] that is not empty, got shape \(3, 4\)"),
        (np.zeros((1, 0, 4), "uint8"), {}, "not empty"),
        (np.zeros((1, 2, 2), "complex64"), {}, "integers or floating point, got complex64"),
        pytest.param(
            *(np.zeros((1, 2, 2), "longdouble"), {}, "numbers of up to 64 bits, got float"),
            marks=pytest.mark.skipif(np.dtype("longdouble").itemsize == 8, reason="a long double is a double here"),
        ),
        (np.zeros((1, 2, 2), "uint8"), {"nodata": -1}, "an integer from 0 to 255"),
        (np.zeros((2, 2, 2), "uint8"), {"band_names": ["a"]}, "one entry per band, 2, got 1"),
        (np.zeros((2, 2, 2), "uint8"), {"units": ["m", "m", "m"]}, "units must have one entry per band, 2, got 3"),
        (np.zeros((1, 2, 2), "uint8"), {"units": ["a\0b"]}, "metadata item 'UNITTYPE'"),
        (np.zeros((1, 2, 2), "uint8"), {"palette": COLOURS[:2].T}, r"uint8 \[n, 3\]"),
        (np.zeros((1, 2, 2), "uint8"), {"metadata": {"note": "\0"}}, "metadata item 'note'"),
        (np.zeros((1, 2, 2), "uint8"), {"metadata": {"TIFFTAG_ARTIST": "a\0b"}}, "TIFFTAG_ARTIST"),
    ],
)
def test_what_does_not_fit_a_geotiff_is_refused(array: np.ndarray, options: dict[str, object], words: str) -> None:
    """The error says what does not fit; no file appears."""
    with pytest.raises(SaveError, match=words):
        written(array, **options)


@pytest.mark.parametrize(("bands", "dtype"), [(2, "uint8"), (1, "int16"), (1, "uint8")])
def test_colours_that_a_geotiff_cannot_hold_are_left_out(bands: int, dtype: str) -> None:
    """Other rasters than one band of uint8 have no colour table, and the largest has 256 colours."""
    palette = np.arange(300 * 3).reshape(300, 3).astype("uint8")
    with MemoryFile(written(np.zeros((bands, 2, 2), dtype), palette=palette)) as memory, memory.open() as file:
        if (bands, dtype) != (1, "uint8"):
            with pytest.raises(ValueError, match="NULL color table"):
                file.colormap(1)
        else:
            assert {value: colour[:3] for value, colour in file.colormap(1).items()} == dict(
                enumerate(map(tuple, palette[:256].tolist()))
            )


def test_an_unknown_keyword_is_named() -> None:
    """As Python would name it, with those that there are."""
    with pytest.raises(TypeError, match="metadata of a GeoTIFF: descriptions; known: nodata, georeference"):
        written(CLASSES, descriptions=["class"])


def test_an_error_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    """A write that fails changes nothing in the folder."""
    target = tmp_path / "mask.tif"
    write_geotiff(target, CLASSES)
    before = target.read_bytes()
    with pytest.raises(InputError, match="EPSG:5773"):
        write_geotiff(target, CLASSES, georeference=Georeference(crs="EPSG:5773"))
    with pytest.raises(SaveError, match="nodata"):
        write_geotiff(target, CLASSES, nodata=-1)
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_the_same_input_gives_the_same_bytes() -> None:
    """Nothing of the time or the machine gets into the file."""
    options = {
        "nodata": 255,
        "metadata": {"a": "b"},
        "georeference": Georeference(crs="EPSG:32614", transform=(1, 0, 0, 0, -1, 0)),
    }
    assert written(CLASSES, **options) == written(CLASSES, **options)


def test_a_path_is_written_as_a_buffer_is(tmp_path: Path) -> None:
    """Text and Path name a file, whose bytes are those of a buffer."""
    for target in (tmp_path / "a.tif", str(tmp_path / "b.tif")):
        write_geotiff(target, CLASSES, nodata=255)
        assert Path(target).read_bytes() == written(CLASSES, nodata=255)
    with rasterio.open(tmp_path / "a.tif") as file:
        np.testing.assert_array_equal(file.read(), CLASSES)
