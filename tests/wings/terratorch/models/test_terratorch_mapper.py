"""TerratorchMapper: rasters to the tensors of a TerraTorch model; place and dates from the request or the file."""

import numpy as np
import pytest
from affine import Affine
from pyproj import Transformer
from stac_catalogue import catalogue, item_path
from terratorch_configs import flood_config, radar_config
from terratorch_rasters import PLACE, mapped, written

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.models.inputs.catalogued import with_catalogued
from vllm_mmout.wings.terratorch.mapper import TerratorchMapper


def test_integers_stay_integers(tmp_path):
    """The model scales and standardises on its device."""
    array = written(tmp_path / "a.tif")
    tensors = mapped(flood_config(), str(tmp_path / "a.tif"))
    assert list(tensors) == ["pixel_values_raw", "location_coords"]
    assert tensors["pixel_values_raw"].dtype == np.int16
    assert (tensors["pixel_values_raw"] == array).all()


def test_the_location_is_the_middle_of_what_is_used(tmp_path):
    """Latitude before longitude, as pyproj gives them."""
    written(tmp_path / "a.tif", size=(100, 200))
    found = mapped(flood_config(), tmp_path / "a.tif", window=(20, 30, 64, 64))["location_coords"]
    there = Transformer.from_crs("EPSG:32630", "EPSG:4326")
    assert found == pytest.approx(there.transform(*(PLACE @ (30 + 32, 20 + 32))), abs=1e-5)
    assert found.dtype == np.float32


def test_the_request_says_where(tmp_path):
    """Before the file; and it serves a file that says nothing."""
    written(tmp_path / "a.tif")
    written(tmp_path / "b.tif", crs=None)
    for name in ("a.tif", "b.tif"):
        assert mapped(flood_config(), tmp_path / name, location=(-10.5, 20))["location_coords"].tolist() == [-10.5, 20]
    assert "location_coords" not in mapped(flood_config(), tmp_path / "b.tif")


@pytest.mark.parametrize(
    ("name", "tags", "day"),
    [
        ("HLS.L30.T14RNV.2024123T170911.v2.0.tif", {}, (2024, 122)),
        ("S2A_MSIL2A_20240502T170851_N0510_R112_T14RNV.tif", {}, (2024, 122)),
        ("LC09_L2SP_027040_20240502_20240503_02_T1.tif", {}, (2024, 122)),
        ("scene-2024-05-02.tif", {}, (2024, 122)),
        ("scene.tif", {"SENSING_TIME": "2024-05-02T17:25:11.123Z"}, (2024, 122)),
        ("scene-2020-01-01.tif", {"ACQUISITION_DATE": "2024-05-02"}, (2024, 122)),
        ("scene.tif", {"TIFFTAG_DATETIME": "2024:05:02 10:00:00"}, (2024, 122)),
        ("scene-2024-05-02.tif", {"TIFFTAG_DATETIME": "2025:01:01 10:00:00"}, (2024, 122)),
        ("scene.tif", {}, None),
        ("scene_20241399_.tif", {}, None),
        ("1234567890123.tif", {}, None),
    ],
)
def test_the_file_says_when(tmp_path, name, tags, day):
    """Metadata, then the file's name, then the date of the TIFF; days count from 0."""
    written(tmp_path / name, tags=tags)
    found = mapped(flood_config(), tmp_path / name).get("temporal_coords")
    assert (found if found is None else found.tolist()) == (day if day is None else [list(day)])


def test_each_date_of_a_list_says_when(tmp_path):
    """Year and day of each file, in their order; the request's are before them."""
    config = flood_config(size=(6, 2, 64, 64))
    names = ["b-2024-05-02.tif", "a-2023-01-01.tif"]
    arrays = [written(tmp_path / name) for name in names]
    tensors = mapped(config, [tmp_path / name for name in names])
    assert tensors["temporal_coords"].tolist() == [[2024, 122], [2023, 0]]
    assert (tensors["pixel_values_raw"] == np.stack(arrays, axis=1)).all()
    said = mapped(config, [tmp_path / name for name in names], dates=("2020-12-31", "2021-01-01"))
    assert said["temporal_coords"].tolist() == [[2020, 365], [2021, 0]]


def test_the_dates_of_catalogue_items_reach_the_model(tmp_path):
    """The files of STAC items state no date, so the model gets the dates of the items."""
    pytest.importorskip("pystac", reason="it reads the items")
    root = catalogue(tmp_path)
    items = [str(item_path(root, "sentinel-2", f"S2A_32TQM_{day}")) for day in ("2024-06-01", "2024-06-11")]
    config = flood_config(size=(6, 2, 48, 48))
    tensors = mapped(config, with_catalogued(items))
    assert tensors["temporal_coords"].tolist() == [[2024, 152], [2024, 162]]
    assert tensors["pixel_values_raw"].shape == (6, 2, 48, 48)


def test_the_times_of_a_zarr_store_reach_the_model(tmp_path):
    """The dates are those of its time axis, in chronological order, as the bands are."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    pixels = np.random.default_rng(0).integers(1, 4000, (2, 6, 64, 64), "int16")
    times = np.array(["2024-05-02T10:00", "2023-01-01T23:30"], "datetime64[ns]")
    xarray.Dataset({"raster": (("time", "band", "y", "x"), pixels)}, {"time": times}).to_zarr(
        tmp_path / "x.zarr", consolidated=False
    )
    tensors = mapped(flood_config(size=(6, 2, 64, 64)), tmp_path / "x.zarr")
    assert tensors["temporal_coords"].tolist() == [[2023, 0], [2024, 122]]
    assert (tensors["pixel_values_raw"] == pixels[::-1].swapaxes(0, 1)).all()


def test_one_file_of_several_dates_says_no_date(tmp_path):
    """Its one date is not that of all."""
    written(tmp_path / "all-2024-05-02.tif", bands=12)
    assert "temporal_coords" not in mapped(flood_config(size=(6, 2, 64, 64)), tmp_path / "all-2024-05-02.tif")


@pytest.mark.parametrize("used", [None, True, False])
def test_a_model_that_was_trained_without_is_not_told(tmp_path, used):
    """Where the folder says so, nothing but the request says where and when, as TerraTorch predicts."""
    written(tmp_path / "a-2024-05-02.tif")
    config = flood_config()
    config["pretrained_cfg"]["data"]["init_args"] |= {} if used is None else {"use_metadata": used}
    told = {"location_coords", "temporal_coords"}
    assert set(mapped(config, tmp_path / "a-2024-05-02.tif")) & told == (set() if used is False else told)
    asked = mapped(config, tmp_path / "a-2024-05-02.tif", location=(1, 2), dates=["2024-01-01"])
    assert (asked["location_coords"].tolist(), asked["temporal_coords"].tolist()) == ([1, 2], [[2024, 0]])


def test_statistics_of_the_request_go_along(tmp_path):
    """As float32, one a band."""
    written(tmp_path / "a.tif")
    found = mapped(flood_config(), tmp_path / "a.tif", means=[0.5] * 6, stds=[1, 2, 3, 4, 5, 6])
    assert found["means"].tolist() == [0.5] * 6
    assert found["stds"].dtype == np.float32


@pytest.mark.parametrize(
    ("options", "words", "param"),
    [
        ({"means": [1.0]}, "means has 1 numbers for 6 bands", "means"),
        ({"dates": ["2024-01-01", "2024-01-02"]}, "dates has 2 dates, and the model takes 1", "dates"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, words, param):
    """The option is named."""
    written(tmp_path / "a.tif")
    with pytest.raises((InputError, OptionError), match=words) as raised:
        mapped(flood_config(), tmp_path / "a.tif", **options)
    assert raised.value.param == param


def test_tiles_of_another_size_are_refused():
    """The network is made for one; the message says where it is said."""
    mapper = TerratorchMapper.from_config(flood_config())
    with pytest.raises(OptionError, match="tile is 32, and the model takes 64 x 64") as raised:
        mapper.tile_sides(32)
    assert raised.value.param == "tile"
    assert mapper.tile_sides(None) == mapper.tile_sides(64) == (64, 64)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("location", (100, 0), "location must be \\(latitude, longitude\\)"),
        ("dates", ("yesterday",), "dates must be days such as"),
        ("stds", (0.0,), "stds must be finite and not 0"),
        ("means", (float("inf"),), "means must be finite"),
    ],
)
def test_values_that_mean_nothing_are_refused(option, value, words):
    """Before any input is opened."""
    with pytest.raises(OptionError, match=words) as raised:
        OutputParams(**{option: value})
    assert raised.value.param == option


def test_bands_are_found_by_name(tmp_path):
    """A file that describes its bands may hold them in another order, and others too."""
    names = ["swir_1", "red", "coastal", "nir_narrow", "green", "blue", "swir_2"]
    array = written(tmp_path / "a.tif", bands=7, descriptions=names)
    found = mapped(flood_config(), tmp_path / "a.tif")["pixel_values_raw"]
    assert (found == array[[5, 4, 1, 3, 0, 6]]).all()


def test_too_many_bands_are_refused(tmp_path):
    """Which are meant is not guessed."""
    written(tmp_path / "a.tif", bands=13)
    with pytest.raises(InputError, match=r"the input has 13 bands, .* takes 6 .*choose with bands="):
        mapped(flood_config(), tmp_path / "a.tif")
    assert mapped(flood_config(), tmp_path / "a.tif", indices=[1, 2, 3, 8, 11, 12])


class TestSeveralImages:
    """Models that take more than one image."""

    @pytest.fixture
    def files(self, tmp_path):
        """Integers of 10 m and floats of 20 m on one place."""
        self.optical = written(tmp_path / "s2.tif", bands=3, size=(32, 32))
        far = Affine(20, 0, 700000, 0, -20, 4400000)
        self.radar = written(tmp_path / "s1.tif", bands=2, size=(16, 16), dtype="float32", transform=far)
        return {"S2L2A": tmp_path / "s2.tif", "S1GRD": tmp_path / "s1.tif"}

    def test_they_lie_on_one_grid(self, files):
        """Each in the dtype of its file, the coarser one brought to the finer."""
        tensors = mapped(radar_config(), files)
        assert tensors["S2L2A_raw"].dtype == np.int16
        assert (tensors["S2L2A_raw"] == self.optical).all()
        assert tensors["S1GRD_raw"].dtype == np.float32
        assert (tensors["S1GRD_raw"] == self.radar.repeat(2, axis=1).repeat(2, axis=2)).all()

    def test_the_order_of_names_does_not_count_and_a_list_is_in_order(self, files):
        """Three ways to say the same."""
        turned = dict(reversed(files.items()))
        first = mapped(radar_config(), files)
        for same in (turned, list(files.values())):
            found = mapped(radar_config(), same)
            assert list(found) == list(first)
            assert all((found[name] == first[name]).all() for name in found)

    @pytest.mark.parametrize("given", ["one", "other", "plain"])
    def test_all_must_be_there(self, files, given):
        """The message shows how to write it."""
        data = {"one": {"S2L2A": files["S2L2A"]}, "other": {**files, "DEM": files["S1GRD"]}, "plain": files["S2L2A"]}
        with pytest.raises(InputError, match=r'takes 2 images; give \{"S2L2A": file, "S1GRD": file\}'):
            mapped(radar_config(), data[given])

    def test_bands_are_not_chosen_across_images(self, files):
        """Numbers would mean nothing."""
        with pytest.raises(OptionError, match="bands cannot choose bands of several images"):
            mapped(radar_config(), files, bands=[1])

    def test_what_is_wrong_with_one_is_said_of_it(self, files, tmp_path):
        """By its name."""
        written(tmp_path / "s1.tif", bands=3, size=(16, 16))
        with pytest.raises(InputError, match="S1GRD: the input has 3 bands"):
            mapped(radar_config(), files)
