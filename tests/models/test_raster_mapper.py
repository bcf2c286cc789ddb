"""RasterMapper: what it reads from config.json, and what it tells of the input."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.models.mapper import RasterMapper
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
