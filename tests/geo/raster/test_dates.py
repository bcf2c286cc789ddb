"""When a raster was taken, by its name and its metadata."""

from __future__ import annotations

from datetime import date

import pytest

from vllm_mmout.geo.raster.dates import date_of_items, date_of_name, date_of_raster

NAMES = {
    "HLS.L30.T14RKV.2020123T170851.v2.0.B05.tif": date(2020, 5, 2),
    "LC08_L2SP_193024_20200101_20200113_02_T1": date(2020, 1, 1),
    "LC81930242015100LGN00": date(2015, 4, 10),
    "S2A_MSIL2A_20200103T100000_N0213_R122_T32TQM_20210101T120000.SAFE": date(2020, 1, 3),
    "S2A_OPER_PRD_MSIL1C_PDMC_20160318T145513_R022_V20150817T101202_20150817T101202.SAFE": date(2015, 8, 17),
    "S1A_IW_GRDH_1SDV_20200104T053311_20200104T053336_030612": date(2020, 1, 4),
    "MOD09GA.A2020123.h18v04.061.2021125": date(2020, 5, 2),
    "20200105_100000_1_0f22.tif": date(2020, 1, 5),
    "x_2020-01-06_b.tif": date(2020, 1, 6),
    "20201301.tif": None,
    "scene_193024.tif": None,
    "date8.tif": None,
}


@pytest.mark.parametrize(("name", "day"), NAMES.items(), ids=str)
def test_a_name_holds_the_day_of_acquisition(name, day):
    """Not that of processing, nor a path and row of Landsat."""
    assert date_of_name(name) == day


def test_a_month_or_a_year_counts_where_only_the_order_matters():
    """As their first day."""
    names = ["2020-03", "2020-3", "ndvi_2019.tif", "202004.tif", "2020-3-5", "2020123.tif"]
    found = [date_of_name(name, coarse=True) for name in names]
    assert found == [
        *(date(2020, 3, 1), date(2020, 3, 1), date(2019, 1, 1), date(2020, 4, 1), date(2020, 3, 5), date(2020, 5, 2))
    ]
    assert [date_of_name(name) for name in names] == [None] * 6


def test_items_come_before_the_name_and_the_date_of_the_file_last():
    """TIFFTAG_DATETIME may be the day of writing."""
    written = {"TIFFTAG_DATETIME": "2022:02:02 10:00:00"}
    assert date_of_raster({"ACQUISITION_DATE": "2020-01-02", **written}, "x_20210101.tif") == date(2020, 1, 2)
    assert date_of_raster(written, "x_20210101.tif") == date(2021, 1, 1)
    assert date_of_raster(written, "x.tif") == date(2022, 2, 2)
    assert date_of_items(written) is None
