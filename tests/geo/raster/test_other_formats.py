"""ENVI, ERDAS IMAGINE, PCIDSK and other formats of geodata: read by path as rasterio reads them, or refused by name."""

from __future__ import annotations

import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import rasterio
from gdal_files import RNG, UTM, converted, tiff

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.opened import open_raster, read_raster

ARRAY = RNG.integers(-500, 3000, (2, 30, 41)).astype("int16")


def made(path: Path, driver: str, **options: object) -> Path:
    """A raster of a format, of one band where the format has no more."""
    count = 1 if driver in ("RST", "AAIGrid") else 2
    return converted(tiff(path.with_name("source.tif"), ARRAY[:count], **UTM), path, driver, **options)


@pytest.mark.parametrize(
    ("driver", "name", "options"),
    [("ENVI", "x.dat", {}), ("ENVI", "x.img", {"INTERLEAVE": "BIP"}), ("ENVI", "x", {"SUFFIX": "ADD"}),
     ("HFA", "x.img", {}), ("HFA", "y.img", {"USE_SPILL": "YES"}), ("PCIDSK", "x.pix", {}), ("EHdr", "x.bil", {}),
     ("AAIGrid", "x.asc", {})],
    ids=str,
)  # fmt: skip
def test_a_format_of_gdal_is_read_by_path(driver: str, name: str, options: dict[str, str], tmp_path: Path) -> None:
    """Pixels and place are those that rasterio reads; what a client sends as bytes names the remedy."""
    path = made(tmp_path / name, driver, **options)
    raster = read_raster(path)
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(raster.array, file.read(), strict=True)
        assert raster.georeference.transform == tuple(file.transform)[:6]
    with pytest.raises(InputError, match="GeoTIFF"):
        open_raster(path.read_bytes())


def test_idrisi_is_named_with_the_remedy(tmp_path: Path) -> None:
    """A raw raster whose header is IDRISI's is refused, and the error says how to convert it."""
    path = made(tmp_path / "x.rst", "RST")
    with pytest.raises(InputError, match=r"x\.rst is an IDRISI raster, by the header beside it; convert it to GeoTIFF"):
        open_raster(path)


def test_a_header_of_another_file_is_refused(tmp_path: Path) -> None:
    """A raw file with fewer bytes than the header beside it says is refused with both numbers, as is one cut short."""
    path = made(tmp_path / "x.dat", "ENVI")
    (tmp_path / "x.raw").write_bytes(path.read_bytes()[: ARRAY.nbytes // 2])
    with pytest.raises(InputError, match=r"x\.raw has 2460 bytes, but the header beside it.* of 2 bands, 4920 bytes"):
        open_raster(tmp_path / "x.raw")
    made(tmp_path / "x.rst", "RST")
    with pytest.raises(InputError, match="IDRISI"):
        open_raster(tmp_path / "x.rst")


@pytest.mark.parametrize(
    ("suffix", "said"),
    [(".tar", "a tar archive"), (".tar.gz", "gzip"), (".tgz", "gzip"), (".tar.bz2", "bzip2"), (".tar.xz", "xz"),
     (".zip", "a ZIP archive")],
)  # fmt: skip
def test_a_packed_product_is_to_be_unpacked(suffix: str, said: str, tmp_path: Path) -> None:
    """An archive of a product is named as what it is, and the error says to unpack it."""
    band = tiff(tmp_path / "LC09_B4.TIF", ARRAY[:1], **UTM)
    path = tmp_path / f"LC09{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            packed.write(band, band.name)
    else:
        kind = {".tar": "", ".tgz": "gz"}.get(suffix, suffix.rpartition(".")[2])
        with tarfile.open(path, f"w:{kind}") as packed:
            packed.add(band, band.name)
    with pytest.raises(InputError, match=f"looks like {said}.*; unpack it first"):
        open_raster(path)


def test_unknown_binary_data_names_a_remedy() -> None:
    """What no signature tells is refused with the way over GDAL."""
    with pytest.raises(InputError, match=r"binary data .*; where GDAL reads it, convert it to GeoTIFF"):
        open_raster(BytesIO(bytes(range(200, 255))))
