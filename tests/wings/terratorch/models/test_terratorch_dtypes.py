"""TerratorchMapper: files of several dtypes, and integers that are scaled before they are sent."""

import numpy as np
import pytest
from affine import Affine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from terratorch_configs import flood_config, radar_config
from terratorch_rasters import PLACE, mapped, written

from vllm_mmout.errors import InputError, OptionError

coarser = Affine.scale
GENERIC = "terratorch.datamodules.GenericNonGeoSegmentationDataModule"


def config_of(*, scale=None, module=GENERIC, size=(6, 64, 64), **said):
    """A folder with a generic data module, whose constant_scale is 1 where nothing else is said."""
    config = flood_config(size=size)
    data = config["pretrained_cfg"]["data"]
    data["class_path"] = module
    del data["init_args"]["constant_scale"]
    data["init_args"].update(said, **({} if scale is None else {"constant_scale": scale}))
    return config


def files_of(folder, dtypes, *, size=(64, 64), bands=1):
    """One file a dtype, and the pixels of all."""
    made = [written(folder / f"{place}.tif", bands=bands, size=size, dtype=one) for place, one in enumerate(dtypes)]
    return [folder / f"{place}.tif" for place in range(len(made))], np.concatenate(made)


class TestOneImage:
    @pytest.mark.parametrize(
        ("dtypes", "sent"),
        [
            (["uint8"] + ["uint16"] * 5, "uint16"),
            (["uint16", "int8"] * 3, None),
            (["int16"] * 6, "int16"),
            (["float32", "float64"] * 3, "float32"),
        ],
    )
    def test_files_of_one_kind(self, tmp_path, dtypes, sent):
        """What holds the values of all files is sent; where it is no dtype that travels, scaled floats are."""
        files, pixels = files_of(tmp_path, dtypes)
        found = mapped(flood_config(), files)["pixel_values_raw"]
        if sent is None:
            np.testing.assert_array_equal(found, pixels.astype(np.float32) * np.float32(1e-4))
        else:
            assert found.dtype == sent
            np.testing.assert_array_equal(found, pixels)

    @pytest.mark.parametrize(
        "dtypes", [["int16"] + ["float32"] * 5, ["float32"] * 5 + ["int16"], ["uint8"] * 5 + ["float64"]]
    )
    @pytest.mark.parametrize("scale", [1e-4, None])
    def test_integers_beside_floats_are_refused(self, tmp_path, dtypes, scale):
        """One of them would be taken for what it is not; whether integers are to be scaled may not be said at all."""
        files, pixels = files_of(tmp_path, dtypes)
        sen1floods11 = "terratorch.datamodules.Sen1Floods11NonGeoDataModule"
        config = config_of(scale=scale, module=sen1floods11)
        with pytest.raises(InputError, match=r"some files of pixel_values hold integers, .* scale=0\.0001"):
            mapped(config, files)
        told = mapped(config, files, scale=0.5)["pixel_values_raw"]
        np.testing.assert_array_equal(told, pixels.astype(np.float32) * np.float32(0.5))

    def test_an_offset_in_counts_is_refused(self, tmp_path):
        """Counts plus an offset are no reflectance, which the model takes; a model of plain values takes them."""
        files, pixels = files_of(tmp_path, ["int16"] * 6)
        with pytest.raises(OptionError, match=r"offset is set without scale, .*give both, .* scale=0\.0001"):
            mapped(flood_config(), files, offset=-1000)
        values = mapped(config_of(), files, offset=-1000)["pixel_values_raw"]
        np.testing.assert_array_equal(values, pixels.astype(np.float32) - 1000)

    def test_integers_beside_floats_that_are_not_scaled(self, tmp_path):
        """Where the model's constant_scale is 1 they mean the same."""
        files, pixels = files_of(tmp_path, ["int16"] + ["float32"] * 5)
        found = mapped(config_of(), files)["pixel_values_raw"]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, pixels)

    def test_dates_of_both_kinds_are_refused(self, tmp_path):
        """Each date may be a file."""
        files, _ = files_of(tmp_path, ["int16", "int16", "float32"], bands=6)
        with pytest.raises(InputError, match="some files of pixel_values hold integers"):
            mapped(flood_config(size=(6, 3, 64, 64)), files)


class TestWideIntegers:
    @pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
    def test_they_are_scaled_before_they_are_sent(self, tmp_path, dtype):
        """The model gets what it would have made of them."""
        pixels = written(tmp_path / "a.tif", dtype=dtype)
        found = mapped(flood_config(), tmp_path / "a.tif")["pixel_values_raw"]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, pixels.astype(np.float32) * np.float32(1e-4))

    @pytest.mark.engine
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_they_are_what_narrow_ones_become(self, data):
        """Scaled here in 32 bits or by the model in 16, the numbers are the same, bit by bit."""
        import torch

        from vllm_mmout.wings.terratorch.model import _standardised

        pixels = data.draw(arrays.arrays(np.int16, (6, 4, 4)))
        scale = data.draw(st.floats(1e-6, 10))
        mean, std = torch.tensor(0.25), torch.tensor(0.5)
        config = config_of(scale=scale, size=(6, 4, 4))
        wide = mapped(config, pixels.astype(np.int32))["pixel_values_raw"]
        narrow = mapped(config, pixels)["pixel_values_raw"]
        assert narrow.dtype == np.int16
        expected = _standardised(torch.from_numpy(narrow), scale, mean, std)
        assert torch.equal(_standardised(torch.from_numpy(wide), None, mean, std), expected)

    def test_a_request_scales_itself(self, tmp_path):
        """As before."""
        pixels = written(tmp_path / "a.tif", dtype="int32")
        found = mapped(flood_config(), tmp_path / "a.tif", scale=0.5, offset=1)["pixel_values_raw"]
        np.testing.assert_array_equal(found, pixels.astype(np.float32) * np.float32(0.5) + 1)

    def test_nodata_stays_nodata(self, tmp_path):
        """It is 0 there, as in other inputs, and not scaled."""
        pixels = written(tmp_path / "a.tif", dtype="int32", nodata=-9999)
        pixels[:, 3, 5] = -9999
        written(tmp_path / "a.tif", array=pixels, nodata=-9999)
        found = mapped(flood_config(), tmp_path / "a.tif")["pixel_values_raw"]
        assert (found[:, 3, 5] == 0).all()
        assert (found != 0).sum() == found.size - 6

    def test_where_no_scale_is_known_they_are_refused(self, tmp_path):
        """Other data modules than the generic ones have defaults of their own; what to write is said."""
        written(tmp_path / "a.tif", dtype="int32")
        config = config_of(module="terratorch.datamodules.Sen1Floods11NonGeoDataModule")
        with pytest.raises(InputError, match=r'dtype is int32, .*scale=0\.0001 .*{"constant_scale": 0\.0001}'):
            mapped(config, tmp_path / "a.tif")


class TestSeveralImages:
    @pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
    @pytest.mark.parametrize("side", [32, 16])
    def test_integers_beside_radar_stay_integers(self, tmp_path, resampling, side):
        """So that the model scales them, however the coarser image is brought to the finer."""
        optical = written(tmp_path / "s2.tif", bands=3, size=(32, 32))
        written(tmp_path / "s1.tif", bands=2, size=(side, side), dtype="float32", transform=PLACE @ coarser(32 // side))
        data = {"S2L2A": tmp_path / "s2.tif", "S1GRD": tmp_path / "s1.tif"}
        found = mapped(radar_config(), data, resampling=resampling)
        assert (found["S2L2A_raw"].dtype, found["S1GRD_raw"].dtype) == (np.int16, np.float32)
        np.testing.assert_array_equal(found["S2L2A_raw"], optical)

    def test_coarse_integers_are_resampled_in_their_dtype(self, tmp_path):
        """Nothing is cut off by the cast back."""
        coarse = written(tmp_path / "s2.tif", bands=3, size=(16, 16), transform=PLACE @ coarser(2))
        written(tmp_path / "s1.tif", bands=2, size=(32, 32), dtype="float32")
        data = {"S2L2A": tmp_path / "s2.tif", "S1GRD": tmp_path / "s1.tif"}
        found = mapped(radar_config(), data, resampling="bilinear")["S2L2A_raw"]
        assert found.dtype == np.int16
        assert coarse.min() <= found.min() <= found.max() <= coarse.max()

    def test_each_has_the_dtype_of_all_its_files(self, tmp_path):
        """Not that of the first."""
        files, pixels = files_of(tmp_path, ["uint8", "uint16", "uint16"], size=(32, 32))
        written(tmp_path / "s1.tif", bands=2, size=(32, 32), dtype="float32")
        found = mapped(radar_config(), {"S2L2A": files, "S1GRD": tmp_path / "s1.tif"})["S2L2A_raw"]
        assert found.dtype == np.uint16
        np.testing.assert_array_equal(found, pixels)

    @pytest.mark.parametrize("dtypes", [("int16", "uint16"), ("int32", "float32"), ("int16", "int32")])
    def test_wide_integers_are_scaled_each_by_its_own(self, tmp_path, dtypes):
        """And floats are left as they are."""
        config = radar_config()
        scales = {"S2L2A": 1e-4, "S1GRD": 0.5}
        config["pretrained_cfg"]["data"]["init_args"]["constant_scale"] = scales
        shapes = {"S2L2A": 3, "S1GRD": 2}
        pixels = {
            name: written(tmp_path / f"{name}.tif", bands=count, size=(32, 32), dtype=dtype)
            for (name, count), dtype in zip(shapes.items(), dtypes, strict=True)
        }
        found = mapped(config, {name: tmp_path / f"{name}.tif" for name in shapes})
        for name, array in pixels.items():
            scale = np.float32(scales[name] if array.dtype.kind in "iu" else 1)
            np.testing.assert_array_equal(found[f"{name}_raw"], array.astype(np.float32) * scale)

    def test_integers_beside_floats_in_one_of_them_are_refused(self, tmp_path):
        """The image is named."""
        config = radar_config()
        config["pretrained_cfg"]["data"]["init_args"]["constant_scale"] = {"S2L2A": 1e-4}
        files, _ = files_of(tmp_path, ["int16", "int16", "float32"], size=(32, 32))
        written(tmp_path / "s1.tif", bands=2, size=(32, 32), dtype="float32")
        with pytest.raises(InputError, match="some files of S2L2A hold integers"):
            mapped(config, {"S2L2A": files, "S1GRD": tmp_path / "s1.tif"})


class TestReflectance:
    MEANS, STDS = [0.033, 0.057, 0.059, 0.232, 0.197, 0.119], [0.023, 0.027, 0.040, 0.078, 0.087, 0.072]
    """Of Prithvi-EO-2.0-300M-BurnScars."""

    @pytest.mark.parametrize("dtype", ["int16", "int32", "uint8"])
    @pytest.mark.parametrize("scale", [None, 1])
    def test_integers_without_a_scale_are_refused(self, tmp_path, dtype, scale):
        """Standardised as they are, they would be some ten thousand."""
        pixels = written(tmp_path / "a.tif", dtype=dtype)
        config = config_of(means=self.MEANS, stds=self.STDS, scale=scale)
        words = (
            'pixel_values holds integers, .* give scale=0.0001 in the request, .*"input": {"constant_scale": 0.0001}'
        )
        with pytest.raises(InputError, match=words) as raised:
            mapped(config, tmp_path / "a.tif")
        assert raised.value.param == "scale"
        for told in (1e-4, 1.0):
            found = mapped(config, tmp_path / "a.tif", scale=told)["pixel_values_raw"]
            np.testing.assert_array_equal(found, pixels.astype(np.float32) * np.float32(told))

    @pytest.mark.parametrize("scale", [1e-4, 1])
    def test_the_folder_may_say_it(self, tmp_path, scale):
        """Then integers are taken; 1 too, as masks need it."""
        written(tmp_path / "a.tif")
        config = config_of(means=self.MEANS, stds=self.STDS) | {"mmout": {"input": {"constant_scale": scale}}}
        assert mapped(config, tmp_path / "a.tif")["pixel_values_raw"].dtype == np.int16

    def test_floats_are_reflectance(self, tmp_path):
        """As ever."""
        written(tmp_path / "a.tif", dtype="float32")
        assert mapped(config_of(means=self.MEANS, stds=self.STDS), tmp_path / "a.tif")

    @pytest.mark.parametrize(
        ("means", "stds"), [([0.0] * 6, [1.0] * 6), ([500.0] * 6, [300.0] * 6), ([-12.6] * 6, [5.2] * 6)]
    )
    def test_other_statistics_take_integers(self, tmp_path, means, stds):
        """Of digital numbers, of decibels, and those that change nothing."""
        written(tmp_path / "a.tif")
        assert mapped(config_of(means=means, stds=stds), tmp_path / "a.tif")["pixel_values_raw"].dtype == np.int16

    def test_statistics_of_the_request_count(self, tmp_path):
        """Instead of the folder's, either way."""
        written(tmp_path / "a.tif")
        config = config_of(means=self.MEANS, stds=self.STDS)
        assert mapped(config, tmp_path / "a.tif", means=[500] * 6, stds=[300] * 6)
        with pytest.raises(InputError, match="pixel_values holds integers"):
            mapped(config_of(), tmp_path / "a.tif", means=self.MEANS, stds=self.STDS)
