"""What of a palette goes into a GeoTIFF, with rasterio as the judge."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import rasterio

from vllm_mmout.outputs import RasterOutput

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

PALETTE = np.random.default_rng(0).integers(0, 256, (300, 3), "uint8")


def test_a_palette_longer_than_a_colour_table_is_cut() -> None:
    """uint8 has 256 values: colours beyond them are left out."""
    with rasterio.open(BytesIO(RasterOutput(np.ones((1, 2, 2), "uint8"), palette=PALETTE).to_bytes("tif"))) as file:
        colours = file.colormap(1)
    assert [colours[value][:3] for value in range(256)] == [tuple(colour) for colour in PALETTE[:256].tolist()]


def test_several_bands_are_saved_without_a_colour_table() -> None:
    """A palette says what one band's numbers look like; of two bands the pixels alone are stored."""
    array = np.arange(8, dtype="uint8").reshape(2, 2, 2)
    with rasterio.open(BytesIO(RasterOutput(array, palette=PALETTE[:9]).to_bytes("tif"))) as file:
        np.testing.assert_array_equal(file.read(), array)
        assert rasterio.enums.ColorInterp.palette not in file.colorinterp
