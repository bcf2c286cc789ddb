"""TerratorchMapper: files that state a scale, for models with a ``constant_scale``."""

import numpy as np
import pytest
import rasterio
from terratorch_configs import flood_config, radar_config
from terratorch_rasters import written

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError
from vllm_mmout.wings.terratorch.mapper import TerratorchMapper

LANDSAT = (2.75e-5, -0.2)
HLS = (1e-4, 0.0)


def stated(path, packings, **options):
    """Write a GeoTIFF whose bands state scale and offset. Return its pixels, and their values by rasterio's fields."""
    pixels = written(path, bands=len(packings), **options)
    scales, offsets = zip(*packings, strict=True)
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = scales, offsets
        columns = (np.reshape(numbers, (-1, 1, 1)) for numbers in (file.scales, file.offsets))
        return pixels, pixels * next(columns) + next(columns)


def seen(config, data, **options):
    """Return the tensors of the model, and the assumptions about its input."""
    mapper = TerratorchMapper.from_config(config)
    with mapper.open(data, OutputParams(**options)) as view:
        return mapper.whole(view).tensors, view.assumed


def config_of(scale, **statistics):
    """Return a folder with this ``constant_scale``, or with none."""
    config = flood_config()
    arguments = config["pretrained_cfg"]["data"]["init_args"]
    arguments.update(statistics, constant_scale=scale)
    if scale is None:
        del arguments["constant_scale"]
    return config


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_another_scale_of_the_file_is_applied_and_said(tmp_path, dtype):
    """Landsat becomes reflectance. Pixels that are nodata by their stored number stay so."""
    pixels, values = stated(tmp_path / "a.tif", [LANDSAT] * 6, dtype=dtype, nodata=7)
    valid = (pixels != 7).all(axis=0)
    tensors, assumed = seen(flood_config(), tmp_path / "a.tif")
    np.testing.assert_allclose(tensors["pixel_values_raw"], np.where(valid, values, 0), atol=1e-6)
    assert tensors["pixel_values_raw"].dtype == np.float32
    (sentence,) = assumed
    assert sentence.startswith("a.tif: scale 2.75e-05 and offset -0.2 are stated by")
    assert "the model's constant_scale is 0.0001; the file's were applied" in sentence


def test_a_list_of_files_is_scaled_as_one_file(tmp_path):
    """Each band has the scale of its own file. One that agrees with the model's scale is not in the sentence."""
    packings = [HLS, *[LANDSAT] * 5]
    parts = [stated(tmp_path / f"{place}.tif", [packing])[1] for place, packing in enumerate(packings)]
    tensors, (sentence,) = seen(flood_config(), [tmp_path / f"{place}.tif" for place in range(6)])
    np.testing.assert_allclose(tensors["pixel_values_raw"], np.concatenate(parts), atol=1e-6)
    assert sentence.startswith("1.tif and 4 more files: scale 2.75e-05")


@pytest.mark.parametrize("packing", [HLS, (float(np.float32(1e-4)), 0.0)])
def test_the_models_own_scale_changes_nothing_and_needs_no_sentence(tmp_path, packing):
    """HLS stays integers, which the model scales."""
    pixels, _ = stated(tmp_path / "a.tif", [packing] * 6)
    tensors, assumed = seen(flood_config(), tmp_path / "a.tif")
    np.testing.assert_array_equal(tensors["pixel_values_raw"], pixels, strict=True)
    assert assumed == ()


def test_counts_of_sentinel2_are_shifted_without_a_sentence(tmp_path):
    """Counts without the 1000 of baseline 04.00, times 0.0001, are the reflectance that the product states."""
    folder = tmp_path / "S2A_MSIL2A_20240817T101559_N0511_R065_T32TMT_20240817T160000.SAFE"
    folder.mkdir()
    (folder / "MTD_MSIL2A.xml").write_text(
        "<a><BOA_QUANTIFICATION_VALUE>10000</BOA_QUANTIFICATION_VALUE>"
        + "".join(f'<BOA_ADD_OFFSET band_id="{band}">-1000</BOA_ADD_OFFSET>' for band in range(13))
        + "</a>"
    )
    names = ("B02", "B03", "B04", "B8A", "B11", "B12")
    files = {name: folder / f"T32TMT_20240817T101559_{name}_20m.tif" for name in names}
    pixels = [written(path, bands=1, dtype="uint16") for path in files.values()]
    tensors, assumed = seen(flood_config(), str(folder))
    counts = np.concatenate(pixels).astype(int)
    np.testing.assert_array_equal(tensors["pixel_values_raw"], (counts - 1000).clip(0) * (counts > 0).all(axis=0))
    assert assumed == ()


@pytest.mark.parametrize(
    ("options", "factor", "offset"),
    [({"scale": "stored"}, 1, 0), ({"scale": "file"}, *LANDSAT), ({"scale": 0.5, "offset": 2.0}, 0.5, 2)],
)
def test_the_request_decides(tmp_path, options, factor, offset):
    """As before, and without a sentence."""
    pixels, _ = stated(tmp_path / "a.tif", [LANDSAT] * 6)
    tensors, assumed = seen(flood_config(), tmp_path / "a.tif", **options)
    np.testing.assert_allclose(tensors["pixel_values_raw"], pixels * factor + offset, atol=1e-6)
    assert assumed == ()


@pytest.mark.parametrize(
    ("scale", "packings", "facts"),
    [
        (1e-4, [LANDSAT] * 5 + [(1.0, 0.0)], "offset -0.2 are stated by .*, other bands state none, .* is 0.0001"),
        (0.005, [LANDSAT] * 6, "scale 2.75e-05 .* the model's constant_scale is 0.005"),
        (0.005, [HLS] * 6, "scale 0.0001 and offset 0 .* the model's constant_scale is 0.005"),
        (None, [LANDSAT] * 6, "scale 2.75e-05 .* config.json sets no constant_scale"),
    ],
)
def test_scales_that_say_two_things_are_refused(tmp_path, scale, packings, facts):
    """The error names both numbers, and the options that decide."""
    stated(tmp_path / "a.tif", packings)
    with pytest.raises(InputError, match=f'{facts}.* set scale="file" .* scale="stored"') as raised:
        seen(config_of(scale), tmp_path / "a.tif")
    assert raised.value.param == "scale"


def test_a_scale_of_1_leaves_the_unit_open(tmp_path):
    """Statistics of counts (Prithvi on HLS) need the stored numbers, and the result says that they were taken."""
    pixels, _ = stated(tmp_path / "a.tif", [HLS] * 6)
    tensors, (sentence,) = seen(config_of(1, means=[1087.0] * 6, stds=[2248.0] * 6), tmp_path / "a.tif")
    np.testing.assert_array_equal(tensors["pixel_values_raw"], pixels, strict=True)
    assert "the numbers were taken as stored" in sentence


def test_each_image_is_compared_with_its_own_scale(tmp_path):
    """Of a model of several images, one is scaled by its file, and the other stays as it is."""
    config = radar_config()
    config["pretrained_cfg"]["data"]["init_args"]["constant_scale"] = {"S2L2A": 1e-4, "S1GRD": 1}
    _, values = stated(tmp_path / "s2.tif", [LANDSAT] * 3, size=(32, 32))
    radar = written(tmp_path / "s1.tif", bands=2, size=(32, 32))
    tensors, (sentence,) = seen(config, {"S2L2A": tmp_path / "s2.tif", "S1GRD": tmp_path / "s1.tif"})
    np.testing.assert_allclose(tensors["S2L2A_raw"], values, atol=1e-6)
    np.testing.assert_array_equal(tensors["S1GRD_raw"], radar)
    assert sentence.startswith("s2.tif: scale 2.75e-05")
