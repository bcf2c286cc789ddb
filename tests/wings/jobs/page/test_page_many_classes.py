"""The page with a model of more classes than a byte counts."""

from __future__ import annotations

import numpy as np
import pytest
from browsing import coloured, given, legend, pixels, run, visited
from many_classes_model import COUNT, ManyClasses
from model_folders import folder_of
from rasterio import Affine
from scenes_for_tests import write
from serving import served

pytestmark = [pytest.mark.engine, pytest.mark.slow]
UTM = {"crs": "EPSG:32614", "transform": Affine(10, 0, 500_000, 0, -10, 3_000_000)}


def test_three_hundred_classes_have_rows_and_colours(browser, tmp_path):
    """Each class of the map has a row in the legend, and its pixels have the colour of that row."""
    folder, _ = folder_of(tmp_path / "model", ManyClasses, mmout={"output_processor": "segmentation"})
    numbers = np.arange(48 * 64).reshape(48, 64) % COUNT
    scene = write(tmp_path / "scene.tif", np.stack([numbers] * 3).astype("uint16"), **UTM)
    with served(folder) as server, visited(browser, server.url) as page:
        given(page, scene)
        run(page)
        rows = legend(page)
        assert len(rows) == COUNT
        np.testing.assert_array_equal(pixels(page, "overlay"), coloured(numbers, rows))
