"""GDAL's XML of items and text of nodata."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.io import MemoryFile
from tifffile import TiffFile, imwrite

from vllm_mmout.errors import SaveError
from vllm_mmout.geo.raster.nodata import as_pixels_have_it, can_hold, format_nodata, parse_nodata
from vllm_mmout.geo.raster.opened import read_raster
from vllm_mmout.geo.raster.raster import Raster
from vllm_mmout.geo.raster.tags import GDAL_METADATA, GDAL_NODATA, GdalMetadata, checked_xml
from vllm_mmout.geo.raster.writing import GeoTiffBlocks, write_geotiff
from vllm_mmout.outputs import RasterOutput

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def test_items_descriptions_units_and_items_of_bands_come_back() -> None:
    """What is written is read, with the characters that XML keeps for itself, and those that end a name for GDAL."""
    items = {"a": 'x < y & "z" \'', "eo:cloud cover:%": "1:2=3", "c=d": "e"}
    buffer = BytesIO()
    write_geotiff(
        buffer, np.ones((2, 4, 4), "uint8"), metadata=items, band_names=[None, "<red>"], units=["W/m² & more", "m"],
        class_names=["land & sea"],
    )  # fmt: skip
    with TiffFile(BytesIO(buffer.getvalue())) as tiff:
        metadata = GdalMetadata.from_xml(tiff.pages.first.tags[GDAL_METADATA].value)
    assert (metadata.items, metadata.descriptions) == (items, {1: "<red>"})
    assert metadata.units == {0: "W/m² & more", 1: "m"}
    assert metadata.band_items[0]["CLASS_0"] == "land & sea"


def test_units_that_gdal_wrote_are_read() -> None:
    """The unit type in the tag of rasterio's own file is the unit of that band, and no item of it."""
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", dtype="uint8", count=2, height=2, width=2) as file:
            file.write(np.zeros((2, 2, 2), "uint8"))
            file.set_band_unit(2, "kg <dry> & °C")
        with TiffFile(BytesIO(memory.read())) as tiff:
            xml = tiff.pages[0].tags[GDAL_METADATA].value
    assert GdalMetadata.from_xml(xml) == GdalMetadata(units={1: "kg <dry> & °C"})


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "<GDALMetadata><Item name='a'>1",
        "no xml",
        "<!DOCTYPE x [<!ENTITY a 'b'>]><GDALMetadata><Item name='a'>&a;</Item></GDALMetadata>",
        "<GDALMetadata><Item>1</Item><Item name='a' domain='IMAGE_STRUCTURE'>1</Item></GDALMetadata>",
        "<GDALMetadata><Item name='a' sample='x'>1</Item></GDALMetadata>",
        "<GDALMetadata><Item name='SCALE' sample='0' role='other'>2</Item></GDALMetadata>",
    ],
)
def test_what_is_not_understood_is_passed_over(xml: str) -> None:
    """Broken XML, document types, other domains and roles give no items, and no error."""
    assert GdalMetadata.from_xml(xml) == GdalMetadata()


@pytest.mark.parametrize("text", ["\0", "a\x1bb", "\ud800", "\uffff"])
def test_characters_that_xml_cannot_hold_are_refused(text: str) -> None:
    """The error names the item."""
    with pytest.raises(SaveError, match="metadata item 'note' has the character"):
        checked_xml("note", text)


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("-9999", "int16", -9999),
        ("0", "uint8", 0),
        ("-9999.0 \0", "float32", -9999.0),
        ("1e-05", "float64", 1e-05),
        ("18446744073709551615", "uint64", 2**64 - 1),
        ("255.0", "uint8", 255),
        ("-inf", "float32", -math.inf),
        ("-3.4028235e+38", "float32", float(np.finfo("float32").min)),
        ("300", "uint8", None),
        ("-1", "uint16", None),
        ("0.5", "uint8", None),
        ("nan", "int32", None),
        ("1e300", "float32", None),
        ("none", "float32", None),
        ("", "uint8", None),
        ("9" * 5000, "int64", None),
    ],
)
def test_nodata_text_is_a_value_that_pixels_can_have_or_none(text: str, dtype: str, value: float | None) -> None:
    """Integers stay integers; what no pixel of the dtype can equal is no nodata."""
    parsed = parse_nodata(text, dtype)
    assert parsed == value
    assert type(parsed) is type(value)


def test_nan_is_a_nodata_of_floats() -> None:
    """NaN is read in any spelling."""
    for text in ("nan", "NaN", "-nan"):
        assert math.isnan(parse_nodata(text, "float32") or 0.0)


@pytest.mark.parametrize(
    ("dtype", "nodata"),
    [("float32", -3.4028234663852886e38), ("float64", 1.7976931348623157e308), ("float32", math.nan), ("int16", 32767),
     ("uint32", 4294967295), ("float32", 0.1), ("int8", -128), ("float64", -math.inf)],
)  # fmt: skip
def test_the_text_of_nodata_agrees_with_rasterio(dtype: str, nodata: float) -> None:
    """A nodata of rasterio's own file is read as rasterio reads it, and written as a text that means the same."""
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", dtype=dtype, count=1, height=2, width=2, nodata=nodata) as file:
            file.write(np.zeros((1, 2, 2), dtype))
        with memory.open() as file:
            oracle = file.nodata
    assert np.array_equal(parse_nodata(format_nodata(nodata, dtype), dtype), oracle, equal_nan=True)


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (-1, "uint8", "an integer from 0 to 255 for uint8, got -1"),
        (math.nan, "int16", "an integer from -32768 to 32767 for int16, got nan"),
        (0.5, "uint8", "got 0.5"),
        (1e300, "float32", "must be within .* for float32, or NaN, got 1e\\+300"),
    ],
)
def test_a_nodata_that_pixels_cannot_have_is_refused(value: float, dtype: str, words: str) -> None:
    """The error says which values the dtype has."""
    with pytest.raises(SaveError, match=words):
        format_nodata(value, dtype)


LITERALS = [-3.4028235e38, 3.4028235e38, -3.40282346639e38, -3.4028235677973366e38, -3.402826e38]
"""What stands in files and in code for the lowest and the highest float32, with more and fewer digits."""


@pytest.mark.parametrize("literal", LITERALS)
def test_the_largest_float_may_be_written_with_fewer_digits(literal: float) -> None:
    """It is the pixels' own value: in the text, in masks of arrays, and where it is read."""
    largest = math.copysign(float(np.finfo("float32").max), literal)
    assert as_pixels_have_it(literal, "float32") == pytest.approx(largest, rel=1e-7)
    assert parse_nodata(format_nodata(literal, "float32"), "float32") == largest
    array = np.array([[[largest, 1.0]]], "float32")
    valid = Raster(array, nodata=literal).valid()
    assert valid is not None
    assert valid.tolist() == [[False, True]]
    assert Raster(array).valid(literal).tolist() == [[False, True]]


@pytest.mark.parametrize("literal", LITERALS[:3])
def test_rasterio_takes_a_literal_for_the_largest_float(literal: float) -> None:
    """That of the pixels nearest to it, as long as that is not infinite."""
    largest = math.copysign(float(np.finfo("float32").max), literal)
    array = np.array([[[largest, 1.0]]], "float32")
    data = BytesIO()
    imwrite(data, array[0], extratags=[(GDAL_NODATA, 2, 0, repr(literal), True)])
    with MemoryFile(data.getvalue()) as memory, memory.open() as file:
        assert file.nodata == largest
        assert (file.read_masks(1) > 0).tolist() == [[False, True]]
        assert parse_nodata(repr(literal), "float32") == file.nodata


@pytest.mark.parametrize("literal", LITERALS)
@pytest.mark.parametrize("make", ["output", "blocks", "whole"])
def test_pixels_of_the_largest_float_are_nodata_of_what_is_written(tmp_path: Path, literal: float, make: str) -> None:
    """In masks, statistics and overviews, and for rasterio."""
    largest = math.copysign(float(np.finfo("float32").max), literal)
    array = np.random.default_rng(0).random((1, 600, 700), "float32")
    array[0, :200] = largest
    path = tmp_path / "a.tif"
    if make == "output":
        output = RasterOutput(array, nodata=literal)
        assert output.valid is not None
        assert not output.valid[:200].any()
        output.save(path)
    elif make == "whole":
        write_geotiff(path, array, nodata=literal)
    else:
        blocks = GeoTiffBlocks(tmp_path, bands=1, height=600, width=700, dtype="float32")
        for row, col in np.ndindex(2, 2):
            blocks.write(row, col, array[:, row * 512 : row * 512 + 512, col * 512 : col * 512 + 512])
        path = blocks.finish(nodata=literal)
    with rasterio.open(path) as file:
        assert file.nodata == largest
        np.testing.assert_array_equal(file.read_masks(1) > 0, array[0] != largest)
        assert float(file.tags(1)["STATISTICS_MAXIMUM"]) <= 1
        assert float(file.tags(1)["STATISTICS_MINIMUM"]) >= 0
        small = file.read(1, out_shape=(300, 350))
    assert (small[:100] == largest).all()
    assert (small[100:] >= 0).all()
    assert (small[100:] <= 1).all()
    np.testing.assert_array_equal(read_raster(path).valid(), array[0] != largest)


def test_what_is_beyond_the_largest_float_stays_so() -> None:
    """Fewer digits miss it upwards, by a millionth at most; integers and floats of 64 bits have the value itself."""
    for literal, dtype in [
        (-3.41e38, "float32"),
        (-3.4028235e38, "float64"),
        (-3.402823e38, "float32"),
        (math.inf, "float32"),
        (256.0, "uint8"),
    ]:
        assert as_pixels_have_it(literal, dtype) == literal
    assert math.isnan(as_pixels_have_it(math.nan, "float32"))
    with pytest.raises(SaveError, match="must be within"):
        format_nodata(-3.4029e38, "float32")


def test_can_hold_knows_limits_fractions_and_nan() -> None:
    """A dtype holds what a pixel can equal."""
    assert can_hold("uint8", 255.0)
    assert can_hold("float32", math.inf)
    assert not can_hold("uint8", 256)
    assert not can_hold("int8", 0.5)
    assert not can_hold("float32", math.nan)
    assert not can_hold("float32", 1e300)
