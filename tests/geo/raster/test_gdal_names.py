"""Names that are GDAL's rather than those of files."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gdal_files import RNG, UTM, jp2, tiff

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.formats import is_gdal_name
from vllm_mmout.geo.raster.opened import open_raster

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]
SUPPORT = Path(__file__).parents[2] / "support"
ARRAY = RNG.integers(0, 4000, (2, 90, 120)).astype("uint16")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("/vsis3/bucket/a.tif", True),
        ("/VSICURL/http://host/a.tif", True),
        ("s3://bucket/a.tif", True),
        ("S3://bucket/a.tif", True),
        ("gs://bucket/a.tif", True),
        ("az://bucket/a.tif", True),
        ('NETCDF:"a.nc":t', True),
        ("hdf5:a.h5://t", True),
        ("a.tif", False),
        ("/data/vsi/a.tif", False),
        ("https://host/a.tif", False),
        ("file:///a.tif", False),
        ("netcdf.nc", False),
        ("", False),
    ],
)
def test_what_a_name_is(name, is_one) -> None:
    """Object stores, file systems of GDAL's and data within files are told from files, whatever their case."""
    assert is_gdal_name(name) is is_one


@pytest.mark.parametrize("suffix", ["tif", "jp2"])
def test_a_file_in_an_archive(suffix, tmp_path) -> None:
    """GDAL's file systems are reached by their names."""
    path = tmp_path / f"a.{suffix}"
    if suffix == "tif":
        tiff(path, ARRAY, **UTM)
    else:
        path.write_bytes(jp2(ARRAY, **UTM))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(path, path.name)
    with open_raster(f"/vsizip/{tmp_path}/a.zip/a.{suffix}") as opened:
        np.testing.assert_array_equal(opened.read().array, ARRAY)
        assert opened.georeference.crs == "EPSG:32632"


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What an object store is asked for that GDAL finds through its environment variables.

    It is a process of its own: GDAL may wait for an answer while this one's threads stand still.
    """
    log = tmp_path / "asked.txt"
    store = [sys.executable, str(SUPPORT / "object_store.py"), str(tiff(tmp_path / "a.tif", ARRAY, **UTM)), str(log)]
    with subprocess.Popen(store, stdout=subprocess.PIPE, text=True) as process:
        port = process.stdout.readline().strip()
        for name, value in {
            "AWS_S3_ENDPOINT": f"127.0.0.1:{port}",
            "AWS_HTTPS": "NO",
            "AWS_VIRTUAL_HOSTING": "FALSE",
            "AWS_NO_SIGN_REQUEST": "YES",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        yield lambda: log.read_text().splitlines()
        process.terminate()


def test_an_object_store_is_asked_for_the_object_alone(asked) -> None:
    """/vsis3/ is read through GDAL, which neither lists the bucket nor looks for files beside."""
    with open_raster("/vsis3/bucket/a.tif") as opened:
        np.testing.assert_array_equal(opened.read().array, ARRAY)
        assert opened.georeference.crs == "EPSG:32632"
    assert set(asked()) == {"/bucket/a.tif"}


def test_an_object_that_is_not_there_is_an_error(asked, capfd) -> None:
    """The name stands in it, and nothing is printed."""
    with pytest.raises(InputError, match=r"/vsis3/bucket/missing\.tif cannot be read by GDAL"):
        open_raster("/vsis3/bucket/missing.tif")
    assert capfd.readouterr() == ("", "")


def test_a_path_of_such_a_name_is_one_too() -> None:
    """A Path keeps what GDAL's file systems are called."""
    with pytest.raises(InputError, match=r"/vsimem/none/a\.tif cannot be read by GDAL"):
        open_raster(Path("/vsimem/none/a.tif"))
