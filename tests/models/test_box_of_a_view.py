"""A bounding box as the part of a raster that a model sees."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from files_open import open_below

from vllm_mmout import OutputParams
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import Georeference, write_geotiff
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.models.inputs.mapper import RasterMapper

ARRAY = np.random.default_rng(2).integers(1, 999, (2, 40, 50)).astype("uint16")
PLACE = Georeference("EPSG:32632", (10.0, 0.0, 5e5, 0.0, -10.0, 5e6))
MAPPER = RasterMapper("model", ("a", "b"), 64)
BOX = (500100.0, 4999700.0, 500300.0, 4999900.0)


def geotiff(georeference=PLACE, array=ARRAY) -> bytes:
    file = BytesIO()
    write_geotiff(file, array, georeference=georeference)
    return file.getvalue()


def test_a_view_of_a_box_is_that_of_its_window() -> None:
    """Pixels, size and place are those of the same part in pixels."""
    by_box, by_window = OutputParams(bbox=BOX), OutputParams(window=(10, 10, 20, 20))
    with MAPPER.open(geotiff(), by_box) as box, MAPPER.open(geotiff(), by_window) as window:
        assert box.window == window.window == Window(10, 10, 20, 20)
        assert box.size == (20, 20)
        assert box.georeference == window.georeference
        assert box.georeference.transform == (10.0, 0.0, 500100.0, 0.0, -10.0, 4999900.0)
        np.testing.assert_array_equal(box.read().array, ARRAY[:, 10:30, 10:30])
        assert box.same_as(window)


def test_a_mapped_input_lies_in_its_box() -> None:
    """What outputs are laid on is the part."""
    mapped = MAPPER(geotiff(), OutputParams(bbox=BOX))
    np.testing.assert_array_equal(mapped.tensors["pixel_values"], ARRAY[:, 10:30, 10:30])
    assert mapped.source.size == (20, 20)
    assert mapped.source.georeference.transform[2::3] == (500100.0, 4999900.0)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files")
@pytest.mark.parametrize(
    ("options", "error"), [({"bbox": (0, 0, 1, 1)}, InputError), ({"bbox": BOX, "bbox_crs": "no"}, OptionError)]
)
def test_a_box_that_is_not_there_closes_the_file(options, error, tmp_path) -> None:
    """An error of the box leaves no file open."""
    path = tmp_path / "scene.tif"
    path.write_bytes(geotiff())
    with pytest.raises(error):
        MAPPER.open(path, OutputParams(**options))
    assert open_below(tmp_path) == []


def test_an_array_has_no_box() -> None:
    """What lies nowhere is told to be cut by pixels."""
    with pytest.raises(InputError, match=r"has no georeference, .*use window="):
        MAPPER(ARRAY, OutputParams(bbox=BOX))
    with pytest.raises(InputError, match="has no georeference"):
        MAPPER.open(geotiff(None), OutputParams(bbox=BOX))
