"""Kinds of EPSG codes, compared with the whole of PROJ's database, which rasterio brings along."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.crs import CRS
from rasterio.io import MemoryFile

from vllm_mmout.errors import InputError
from vllm_mmout.raster import Georeference, write_geotiff
from vllm_mmout.raster.epsg import crs_kind

KINDS = {
    "projected": "projected",
    "geographic 2D": "geographic",
    "geographic 3D": "geographic",
    "geocentric": "geocentric",
}


def test_every_code_of_proj_has_its_kind() -> None:
    """Of the codes that PROJ knows, none is taken for another kind of system."""
    path = Path(rasterio.__file__).parent / "proj_data/proj.db"
    if not path.exists():
        pytest.skip("this rasterio has PROJ's database elsewhere")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        query = (
            "select cast(code as integer), type from crs_view where auth_name = 'EPSG' and code between 1024 and 32766"
        )
        rows = database.execute(query).fetchall()
    assert len(rows) > 7000
    wrong = {code: kind for code, kind in rows if crs_kind(code) != KINDS.get(kind, "other")}
    if len(wrong) > len(rows) // 100:
        pytest.fail(f"{len(wrong)} codes have another kind than in PROJ: {dict(list(wrong.items())[:20])}")
    assert {code for code in wrong if code <= 11043} == set()  # codes given out after the table was made come above


@pytest.mark.parametrize(
    "code", [4326, 4087, 4399, 4647, 4979, 2154, 3857, 5070, 6933, 8857, 10481, 20046, 27700, 32766]
)
def test_rasterio_reads_the_system_that_was_written(code: int) -> None:
    """Codes at the borders of the tables come back as themselves."""
    if code == 32766:
        assert crs_kind(code) == "projected"
        return
    buffer = BytesIO()
    place = Georeference(crs=f"EPSG:{code}", transform=(1.0, 0.0, 5.0, 0.0, -1.0, 7.0))
    write_geotiff(buffer, np.zeros((1, 3, 3), "uint8"), georeference=place)
    with MemoryFile(buffer.getvalue()) as memory, memory.open() as file:
        assert file.crs == CRS.from_epsg(code)


@pytest.mark.parametrize("code", [0, 1023, 32767, 900913])
def test_a_number_that_geotiff_has_no_room_for_is_refused(code: int) -> None:
    """The error says which numbers there are."""
    with pytest.raises(
        InputError, match=f"EPSG:{code} is no coordinate system of GeoTIFF; codes run from 1024 to 32766"
    ):
        crs_kind(code)
