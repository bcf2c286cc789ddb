"""Which band of an input is which, by what names and colours mean."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from several_files import mapper, seen, write

from vllm_mmout.errors import InputError
from vllm_mmout.geo import read_raster
from vllm_mmout.models.inputs.make_mapper import chosen_bands
from vllm_mmout.params import OutputParams

rasterio = pytest.importorskip("rasterio", reason="files as GDAL writes them")
SIX = ("blue", "green", "red", "narrow NIR", "SWIR 1", "SWIR 2")
SENTINEL = ("B02", "B03", "B04", "B8A", "B11", "B12")


def noted(model, data, **options):
    """What was assumed when bands were chosen."""
    with model.open(data, OutputParams(**options)) as view:
        return view.assumed


def colours(path, bands, **options):
    """A file of bytes as rasterio writes it; band n is full of n."""
    array = np.stack([np.full((4, 5), number, np.uint8) for number in range(1, bands + 1)])
    array[-1, 0, 1] = 0
    descriptions, tags = options.pop("descriptions", ()), options.pop("colorinterp", None)
    profile = {"driver": "GTiff", "count": bands, "height": 4, "width": 5, "dtype": "uint8", "crs": "EPSG:32632"}
    transform = rasterio.Affine(10, 0, 500000, 0, -10, 5000000)
    with rasterio.open(path, "w", transform=transform, **profile, **options) as file:
        file.write(array)
        for number, text in enumerate(descriptions, start=1):
            file.set_band_description(number, text)
        if tags:
            file.colorinterp = [rasterio.enums.ColorInterp[name] for name in tags]
    return path


ORDERS = {
    "words for words": (SIX, SIX[::-1], [6, 5, 4, 3, 2, 1]),
    "numbers of Sentinel-2": (SIX, SENTINEL[::-1], [6, 5, 4, 3, 2, 1]),
    "words of STAC": (SIX, ("swir22", "swir16", "nir08", "nir", "red", "green", "blue"), [7, 6, 5, 3, 2, 1]),
    "numbers for words": (SENTINEL, SIX[::-1], [6, 5, 4, 3, 2, 1]),
    "numbers of Landsat 8": (SIX, ("SR_B7", "SR_B6", "SR_B5", "SR_B4", "SR_B3", "SR_B2"), [6, 5, 4, 3, 2, 1]),
    "a band too many": (("red", "nir"), ("B02", "B03", "B04", "B08", "B8A"), [3, 4]),
    "polarisations": (("vv", "vh"), ("Sigma0_VH_db", "Sigma0_VV_db"), [2, 1]),
    "GDAL's driver": (("red", "blue"), ("B2, central wavelength 490 nm", "B4 (Red)", "B8A"), [2, 1]),
    "names of nobody": (("x", "elevation"), ("Elevation", "x"), [2, 1]),
    "words that say nothing": (("red", "nir"), ("Band 1", "2"), [1, 2]),
    "counted bands": (("blue", "green", "red", "nir"), ("b1", "b2", "b3", "b4"), [1, 2, 3, 4]),
}


@pytest.mark.parametrize(("model", "names", "places"), ORDERS.values(), ids=ORDERS)
def test_names_that_are_understood_tell_the_order(tmp_path, model, names, places):
    """In whatever words the model and the file call a band."""
    path = write(tmp_path / "x.tif", *range(1, len(names) + 1), band_names=names)
    assert seen(mapper(*model), path) == places
    assert seen(mapper(*model), path, bands=list(range(1, len(model) + 1))) == list(range(1, len(model) + 1))
    assert not noted(mapper(*model), path)


REFUSED = {
    "one band is missing": (("blue", "green", "red"), ("red", "green", "nir"), "red, green, nir.*blue, green, red"),
    "a name has another place": (("a", "red"), ("red", "x"), "bands are red, x.*taken for a, red"),
    "B5 is NIR or red edge": (("blue", "green", "red", "nir"), ("B2", "B3", "B4", "B5"), "Sentinel-2 and Landsat 8"),
    "Landsat's 4 3 2": (("blue", "green", "red"), ("B4", "B3", "B2"), "the sensor is unknown.*bands=\\[...\\]"),
}


@pytest.mark.parametrize(("model", "names", "says"), REFUSED.values(), ids=REFUSED)
def test_names_that_contradict_the_order_are_refused(tmp_path, model, names, says):
    """With both orders, or the sensors that the names may be of; what the request says goes first."""
    path = write(tmp_path / "x.tif", *range(1, len(names) + 1), band_names=names)
    with pytest.raises(InputError, match=says):
        seen(mapper(*model), path)
    numbers = list(range(1, len(names) + 1))
    assert seen(mapper(*model), path, bands=numbers) == numbers


@pytest.mark.parametrize(
    ("name", "options", "places"),
    [
        ("LC08_L2SP_193024_20200101_20200113_02_T1.tif", {}, [2, 3]),
        ("S2B_MSIL2A_20200101T100000.tif", {}, [2, 4]),
        ("x.tif", {"metadata": {"SPACECRAFT_ID": "LANDSAT_9"}}, [2, 3]),
        ("LT05_L2SP_193024_20000101.tif", {}, [1, 2]),
    ],
)
def test_the_sensor_tells_what_a_number_means(tmp_path, name, options, places):
    """Red and near infrared are other numbers on each."""
    path = write(tmp_path / name, 1, 2, 3, 4, band_names=["B3", "B4", "B5", "B8"], **options)
    assert seen(mapper("red", "nir"), path) == places


def test_a_folder_needs_no_bands_where_its_files_are_understood(tmp_path):
    """Landsat and HLS by the sensor in the names; files called as assets of STAC; a missing band is an error."""
    for number in range(1, 8):
        write(tmp_path / "LC09" / f"LC09_L2SP_193024_20220101_20220113_02_T1_SR_B{number}.TIF", number)
        write(tmp_path / "HLS" / f"HLS.L30.T14RKV.2020123T170851.v2.0.B{number:02}.tif", number)
    for number, name in enumerate(("swir22", "blue", "green", "nir08", "scl", "red", "swir16")):
        write(tmp_path / "stac" / f"S2A_{name}.tif", number)
    assert seen(mapper(*SIX), tmp_path / "LC09") == [2, 3, 4, 5, 6, 7]
    assert seen(mapper(*SIX), tmp_path / "HLS") == [2, 3, 4, 5, 6, 7]
    assert seen(mapper(*SIX), tmp_path / "stac") == [1, 2, 5, 3, 6, 0]
    assert seen(mapper("a", "b"), tmp_path / "LC09", bands=["red", "B5"]) == [4, 5]
    with pytest.raises(InputError, match="has no band 'cirrus'"):
        seen(mapper("red", "cirrus"), tmp_path / "LC09")


def test_a_list_of_files_keeps_its_order_where_its_names_may_be_those_of_two_sensors(tmp_path):
    """Whoever gives a list gives an order: the result says which sensors the names may be of."""
    files = [write(tmp_path / f"B{number}.tif", number) for number in range(2, 8)]
    assert seen(mapper(*SIX), files) == [2, 3, 4, 5, 6, 7]
    assert "may be those of Sentinel-2 and Landsat 8 or 9" in noted(mapper(*SIX), files)[0]
    with pytest.raises(InputError, match="the sensor is unknown"):
        seen(mapper(*SIX), files[::-1])


def test_equal_numbers_of_two_sensors_are_not_one_band(tmp_path):
    """B8 and B11 of Sentinel-2 are near and short-wave infrared, of Landsat 8 panchromatic and thermal."""
    for number in range(1, 12):
        write(tmp_path / f"LC08_L1TP_193024_20200101_20200113_02_T1_B{number}.TIF", number)
    assert seen(mapper("B02", "B04", "B08", "B11", "B12"), tmp_path) == [2, 4, 5, 6, 7]


def test_broad_near_infrared_stands_for_narrow_and_says_so(tmp_path):
    """Where the other is not there."""
    path = write(tmp_path / "x.tif", 1, 2, band_names=["B08", "B12"])
    model = mapper("SWIR 2", "narrow NIR")
    assert seen(model, path) == [2, 1]
    assert noted(model, path) == (
        "Band 'B08' of the input was taken for 'narrow NIR', the other near infrared; choose another with bands=[...].",
    )
    assert not noted(model, write(tmp_path / "y.tif", 1, 2, band_names=["B12", "B8A"]))


def test_bands_of_unknown_names_are_taken_by_place_and_the_result_says_so(tmp_path):
    """Names that say nothing do not matter."""
    path = write(tmp_path / "x.tif", 1, 2, band_names=["height", "Band 2"])
    (sentence,) = noted(mapper("red", "nir"), path)
    assert sentence.startswith("Bands height of the input were taken by their position")
    assert not noted(mapper("red", "nir"), write(tmp_path / "y.tif", 1, 2))


def test_all_dates_of_one_file_are_matched(tmp_path):
    """Date by date, or band by band, as the names repeat."""
    model = mapper("red", "nir", num_frames=2)
    assert seen(model, write(tmp_path / "a.tif", 1, 2, 3, 4, band_names=["NIR", "Red"] * 2)) == [[2, 4], [1, 3]]
    assert seen(model, write(tmp_path / "b.tif", 1, 2, 3, 4, band_names=["B08", "B08", "B04", "B04"])) == [
        [3, 4],
        [1, 2],
    ]
    with pytest.raises(InputError, match="bands are blue, red, blue, red"):
        seen(model, write(tmp_path / "c.tif", 1, 2, 3, 4, band_names=["blue", "red"] * 2))


def test_colour_interpretation_counts_as_a_name(tmp_path):
    """Of three bands of bytes, of a picture, and near infrared as GDAL writes it; descriptions go before it."""
    model = mapper("blue", "green", "red")
    plain = colours(tmp_path / "plain.tif", 3)
    assert seen(model, plain) == [3, 2, 1]
    assert "by their colour interpretation" in noted(model, plain)[0]
    Image.fromarray(np.full((4, 5, 3), (1, 2, 3), np.uint8)).save(tmp_path / "x.png")
    assert seen(model, tmp_path / "x.png") == seen(model, Image.open(tmp_path / "x.png")) == [3, 2, 1]
    assert seen(model, colours(tmp_path / "named.tif", 3, descriptions=("blue", "green", "red"))) == [1, 2, 3]
    assert seen(mapper("a", "b", "c"), plain) == [1, 2, 3]
    tagged = colours(tmp_path / "nir.tif", 4, photometric="MINISBLACK", colorinterp=("nir", "red", "green", "blue"))
    assert seen(mapper("red", "green", "blue", "nir"), tagged) == [2, 3, 4, 1]
    with pytest.raises(InputError, match="red by its colour, green by its colour, blue by its colour"):
        seen(mapper("blue", "green", "nir"), plain)


def test_a_fourth_band_is_alpha_only_where_nothing_says_otherwise(tmp_path):
    """GDAL tags it so in any file of four bands of bytes; a picture with alpha is refused with a word on it."""
    four, three = mapper("red", "green", "blue", "nir"), mapper("red", "green", "blue")
    plain = colours(tmp_path / "plain.tif", 4)
    named = colours(tmp_path / "named.tif", 4, descriptions=("Red", "Green", "Blue", "NIR"))
    height = colours(tmp_path / "height.tif", 4, descriptions=("", "", "", "height"))
    with rasterio.open(plain) as file:
        assert file.colorinterp[3].name == "alpha"
    for path in (plain, named, height):
        mapped = four(path, OutputParams())
        assert mapped.tensors["pixel_values"][:, 1, 1].tolist() == [1, 2, 3, 4]
        assert mapped.source.valid is None
    assert "Band 4 of the input is tagged as alpha, and was taken for 'nir'" in noted(four, plain)[0]
    assert three(named, OutputParams()).source.valid is None
    assert three(plain, OutputParams()).source.valid is not None
    with pytest.raises(InputError, match=r"blue by its colour, alpha by its tags.*taken for blue, green, red, nir"):
        mapper("blue", "green", "red", "nir")(plain, OutputParams())
    Image.fromarray(np.full((4, 5, 4), 7, np.uint8)).save(tmp_path / "x.png")
    with pytest.raises(InputError, match="3 bands beside band 4, which is alpha"):
        four(tmp_path / "x.png", OutputParams())


def test_gdals_own_reading_agrees_on_the_fourth_band(tmp_path):
    """A VRT of the file, which is read through GDAL, masks nothing either."""
    named = colours(tmp_path / "named.tif", 4, descriptions=("Red", "Green", "Blue", "NIR"))
    with rasterio.open(named) as source:
        rasterio.shutil.copy(source, tmp_path / "x.vrt", driver="VRT")
    mapped = mapper("nir", "red")(tmp_path / "x.vrt", OutputParams())
    assert mapped.source.valid is None
    assert mapped.tensors["pixel_values"][:, 1, 1].tolist() == [4, 1]


def test_a_processor_of_pictures_gets_red_green_and_blue(tmp_path):
    """Of bands that say what they are, in whatever order, and of more than three."""
    path = colours(tmp_path / "x.tif", 4, descriptions=("B02", "B03", "B04", "B08"))
    assert chosen_bands(read_raster(path), OutputParams()).array[:, 1, 1].tolist() == [3, 2, 1]
    plain = colours(tmp_path / "y.tif", 3)
    assert chosen_bands(read_raster(plain), OutputParams()).array[:, 1, 1].tolist() == [1, 2, 3]
