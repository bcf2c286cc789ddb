"""Series of rasters as Zarr stores with a time axis, with xarray as the judge."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", reason="the oracle is zarr-python")
xarray = pytest.importorskip("xarray", reason="the oracle is xarray")

from vllm_mmout.errors import InputError, SaveError  # noqa: E402
from vllm_mmout.geo import Georeference, open_raster  # noqa: E402
from vllm_mmout.outputs import RasterOutput, RasterSeries  # noqa: E402

pytestmark = pytest.mark.heavy
RNG = np.random.default_rng(0)
UTM = Georeference(crs="EPSG:32632", transform=(10.0, 0.0, 500000.0, 0.0, -10.0, 5000000.0))


def raster(day: str, low: int = 0, *, side: int = 70, **known: Any) -> RasterOutput:
    """A raster of two bands, with the metadata of a map of the day."""
    metadata = {"MMOUT_INPUTS": f"{day}.tif", "MMOUT_MODEL": "m", "DATE": day}
    pixels = RNG.integers(low, 9, (2, side, 60), "int16")
    return RasterOutput(pixels, **{"nodata": -1, "georeference": UTM, "metadata": metadata, **known})


def test_dates_become_the_time_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dates are sorted, reduced copies have them too, and an input has the dates of its bands."""
    monkeypatch.setattr("vllm_mmout.outputs.formats.zarr_store._SIDE", 64)
    rasters = {day: raster(day, -1) for day in ("2024-06-11", "2024-06-01", "2023-12-31")}
    path = RasterSeries(rasters).save(tmp_path / "days.zarr")
    dataset = xarray.open_zarr(path, decode_coords="all", mask_and_scale=False)
    assert [str(time)[:10] for time in dataset.time.values] == sorted(rasters)
    for day, output in rasters.items():
        np.testing.assert_array_equal(dataset.raster.sel(time=np.datetime64(day)), output.array, strict=True)
    assert (dataset.attrs["MMOUT_MODEL"], "DATE" in dataset.attrs) == ("m", False)
    assert dataset.attrs["MMOUT_INPUTS"].split("\n") == [f"{day}.tif" for day in sorted(rasters)]
    reduced = xarray.open_zarr(path, group="1", mask_and_scale=False).raster
    alone = rasters["2024-06-01"].save(tmp_path / "alone.zarr")
    np.testing.assert_array_equal(reduced[1], xarray.open_zarr(alone, group="1", mask_and_scale=False).raster)
    with open_raster(path) as opened:
        assert [str(day) for day in opened.days] == np.repeat(sorted(rasters), 2).tolist()
        np.testing.assert_array_equal(opened.read(bands=[5, 6]).array, rasters["2024-06-11"].array)


def test_rasters_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    """The message names the dates and the property; nodata that hides pixels of another date is refused too."""
    first = raster("2024-06-01")
    for other, words in [
        (raster("2024-06-11", side=50), "2024-06-01 and 2024-06-11 differ in height, 70 and 50"),
        (raster("2024-06-11", nodata=-2), "differ in nodata"),
        (raster("2024-06-11", georeference=None), "differ in crs"),
    ]:
        with pytest.raises(InputError, match=words):
            RasterSeries({date(2024, 6, 1): first, date(2024, 6, 11): other})
    noon, twice = datetime(2024, 6, 1, 12, tzinfo=UTC), {"2024-06-01": first, "20240601": first}
    for dates in ({}, {"June": first}, {noon: first}, twice):
        with pytest.raises(InputError, match="date"):
            RasterSeries(dates)
    hidden = RasterSeries({"2024-06-01": first, "2024-06-11": raster("2024-06-11", -1, nodata=None)})
    with pytest.raises(SaveError, match="pixels of -1, which are nodata in the others"):
        hidden.save(tmp_path / "x.zarr")
    assert not list(tmp_path.iterdir())
