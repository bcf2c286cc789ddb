"""A Sentinel-2 product as it is delivered: JPEG 2000, three resolutions, a folder each."""

from __future__ import annotations

import numpy as np
import pytest
import rasterio
from gdal_files import jp2
from rasterio.enums import Resampling
from rasterio.transform import Affine
from rasterio.vrt import WarpedVRT

from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.params import OutputParams

BANDS = {"B02": 10, "B04": 10, "B8A": 20, "B11": 20, "B09": 60}
"""Band -> metres of its pixels."""
METRES = 1200


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    """The folder that holds R10m, R20m and R60m; coarse copies of the 10 m bands lie in R20m, as in a real one."""
    folder = tmp_path_factory.mktemp("S2A_MSIL2A.SAFE") / "GRANULE" / "L2A_T32TQM" / "IMG_DATA"
    rng = np.random.default_rng(11)
    for band, size in [*BANDS.items(), ("B02", 20), ("B04", 20)]:
        place = folder / f"R{size}m"
        place.mkdir(parents=True, exist_ok=True)
        array = rng.integers(1, 10_000, (1, METRES // size, METRES // size), "uint16")
        transform = Affine(size, 0, 600_000, 0, -size, 5_000_040)
        data = jp2(array, crs="EPSG:32632", transform=transform)
        (place / f"T32TQM_20200101T100000_{band}_{size}m.jp2").write_bytes(data)
    return folder.parents[2]


@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
def test_its_bands_lie_on_the_finest_grid(product, resampling):
    """Equal to GDAL's warp of each band, within one unit."""
    mapper = RasterMapper("FloodNet", tuple(BANDS), 512)
    found = mapper(product, OutputParams(resampling=resampling)).tensors["pixel_values"]
    assert found.dtype == np.uint16
    side = METRES // 10
    grid = {"crs": "EPSG:32632", "transform": Affine(10, 0, 600_000, 0, -10, 5_000_040), "height": side, "width": side}
    for plane, (band, size) in zip(found, BANDS.items(), strict=True):
        (path,) = product.rglob(f"R{size}m/*{band}_*.jp2")
        with rasterio.open(path) as file, WarpedVRT(file, resampling=Resampling[resampling], **grid) as warped:
            expected = warped.read(1)
        assert np.abs(plane.astype(int) - expected).max() <= (resampling == "bilinear"), band
    assert len(np.unique(found[4])) > 300, "the coarse band is no constant"
