"""Inputs of several files for tests, and mappers that read them."""

from __future__ import annotations

import numpy as np

from vllm_mmout.geo import Georeference, write_geotiff
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.params import OutputParams

LANDSAT = "LC08_L2SP_193024_20200101_20200113_02_T1_SR_{}.TIF"
SENTINEL = "T32TQM_20200101T100000_{}_10m.tif"
PLACE = Georeference(crs="EPSG:32632", transform=(30, 0, 399960, 0, -30, 5300040))


def mapper(*bands, **settings):
    """The mapper of a model of these bands."""
    return RasterMapper("FloodNet", bands, 64, **settings)


def write(path, *values, **options):
    """A file of 4 x 5 pixels, each band of one value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.stack([np.full((4, 5), value, np.uint16) for value in values])
    write_geotiff(path, array, georeference=options.pop("georeference", PLACE), **options)
    return path


def seen(model, data, **options):
    """The value of each band, or of each band and date, that the model gets."""
    tensor = model(data, OutputParams(**options)).tensors["pixel_values"]
    return tensor[..., 0, 0].tolist()
