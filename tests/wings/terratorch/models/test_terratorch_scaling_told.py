"""What ``vllm-mmout info`` says of the scaling of a TerraTorch model."""

from __future__ import annotations

import pytest
from terratorch_configs import flood_config, radar_config

pytest.importorskip("torch", reason="the mapper is of a model")
from vllm_mmout.wings.terratorch.mapper import TerratorchMapper

pytestmark = pytest.mark.engine


def test_scale_and_statistics_are_a_formula():
    """Statistics of each band and date are told once a band, those of the first date."""
    table = {"input": {"means": [[number, 9] for number in range(6)], "stds": [[2, 9]] * 6}}
    mapper = TerratorchMapper.from_config(flood_config(size=(6, 2, 64, 64), mmout=table))
    assert mapper.scaling[:2] == ("(integers * 0.0001 - 0) / 2", "(integers * 0.0001 - 1) / 2")
    assert len(mapper.scaling) == len(mapper.bands)


def test_bands_of_several_images_are_told_apart():
    """Each band has its image, and statistics of a data module are named as such."""
    mapper = TerratorchMapper.from_config(radar_config())
    assert mapper.images_of_bands == ("S2L2A",) * 3 + ("S1GRD",) * 2
    assert set(mapper.scaling) == {"value, then standardised by TerraTorch's data module"}
