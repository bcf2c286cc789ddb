"""RasterMapper: what it reads from config.json, and what it tells of the input."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.params import OutputParams

CONFIG = {"architectures": ["FloodNet"], "bands": ["blue", "green", "red"], "max_size": 64}


def test_the_config_says_bands_and_size():
    """The model is called by its class, its bands and largest size stand in config.json."""
    assert RasterMapper.from_config(CONFIG) == RasterMapper("FloodNet", ("blue", "green", "red"), 64)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"bands": None}, "must be a list of the model's band names, got None"),
        ({"bands": []}, r"got \[\]"),
        ({"bands": "red"}, "got 'red'"),
        ({"bands": [1]}, r"got \[1\]"),
        ({"max_size": None}, "must be a number of pixels, 1 or more, got None"),
        ({"max_size": 0}, "got 0"),
        ({"max_size": "64"}, "got '64'"),
        ({"max_size": True}, "got True"),
    ],
)
def test_a_config_without_them_is_refused(entry, says):
    """The error names the entry and what it must be."""
    with pytest.raises(OptionError, match=rf'"{next(iter(entry))}" in config.json {says}|{says}'):
        RasterMapper.from_config(CONFIG | entry)


def test_the_picture_has_the_bands_that_are_called_red_green_and_blue():
    """An output that is shown over its input gets it in natural colours, of the input's size."""
    values = np.stack([np.full((4, 6), value, np.uint8) for value in (10, 20, 30)])
    mapped = RasterMapper.from_config(CONFIG)(values, OutputParams())
    picture = mapped.source.picture()
    assert (picture.mode, picture.size) == ("RGB", (6, 4))
    assert picture.getpixel((0, 0)) == (30, 20, 10)


def test_another_number_of_bands_is_shown_in_grey():
    """Without the three names the first band is shown, stretched."""
    mapper = RasterMapper("net", ("a", "b"), 64)
    values = np.stack([np.arange(24).reshape(4, 6), np.zeros((4, 6))]).astype(np.float32)
    picture = mapper(values, OutputParams()).source.picture()
    assert picture.getpixel((0, 0)) == (0, 0, 0)
    assert picture.getpixel((5, 3)) == (255, 255, 255)


def test_what_was_not_observed_is_marked():
    """The source knows the size, and the mask where a band is NaN."""
    values = np.ones((3, 4, 6), np.float32)
    values[1, 2, 3] = np.nan
    source = RasterMapper.from_config(CONFIG)(values, OutputParams()).source
    assert source.size == (4, 6)
    assert source.valid.sum() == 23
    assert not source.valid[2, 3]


def file_with(descriptions, tmp_path):
    """A GeoTIFF whose bands hold 0, 10, 20, ... and are described so."""
    from vllm_mmout.geo import write_geotiff

    values = np.stack([np.full((4, 6), 10 * band, np.uint8) for band in range(len(descriptions))])
    write_geotiff(tmp_path / "bands.tif", values, band_names=descriptions)
    return tmp_path / "bands.tif"


@pytest.mark.parametrize(
    ("descriptions", "params", "read"),
    [
        (["blue", "green", "red"], {}, [0, 10, 20]),
        (["red", "green", "blue"], {}, [20, 10, 0]),
        (["coast", "red", "green", "blue", "nir"], {}, [30, 20, 10]),
        (["a", "b", "c"], {}, [0, 10, 20]),
        ([None, "green", "blue"], {}, [20, 10, 0]),
        ([None, None, None], {}, [20, 10, 0]),
        (["red", "green", "blue"], {"bands": [1, 2, 3]}, [0, 10, 20]),
        (["red", "green", "blue"], {"indices": [0, 0, 1]}, [0, 0, 10]),
    ],
)
def test_a_file_that_names_the_models_bands_is_read_by_name(tmp_path, descriptions, params, read):
    """The request goes first, then names, then the colours of three bands of bytes; unknown names say nothing."""
    mapped = RasterMapper.from_config(CONFIG)(file_with(descriptions, tmp_path), OutputParams(**params))
    assert mapped.tensors["pixel_values"][:, 0, 0].tolist() == read


def test_a_name_that_two_bands_have_is_not_guessed(tmp_path):
    """Which of two bands of one name is meant, the request must say."""
    with pytest.raises(InputError, match="green"):
        RasterMapper.from_config(CONFIG)(file_with(["blue", "green", "green", "red"], tmp_path), OutputParams())
