"""What GDAL alone reads, against rasterio itself: pixels, masks and facts of JPEG 2000, VRT, NetCDF and odd TIFFs."""

from __future__ import annotations

import itertools
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import rasterio
import tifffile
from files_open import open_below
from gdal_files import RNG, UTM, converted, jp2, mosaic, next_tiff, tiff
from rasterio.control import GroundControlPoint
from rasterio.transform import Affine

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster import gdal_datasets
from vllm_mmout.geo.raster.gdal import OpenGdal
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Raster, Window
from vllm_mmout.geo.raster.writing import write_geotiff

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning"),  # rasterio's own use of affine
]
SIZE = (200, 333)
ARRAY = RNG.integers(0, 4000, (3, *SIZE)).astype("uint16")
WINDOWS = [Window(0, 0, 70, 70), Window(60, 50, 90, 200), Window(0, 0, *SIZE), Window(199, 332, 1, 1)]


def assert_as_rasterio(opened, path, bands=None) -> None:
    """Windows, and the whole, are what rasterio reads from the same file."""
    with rasterio.open(path) as file:
        assert (opened.size, opened.count) == (file.shape, file.count)
        for window, raster in itertools.chain(
            zip(WINDOWS, opened.windows(WINDOWS, bands), strict=True), [(Window(0, 0, *SIZE), opened.read(bands=bands))]
        ):
            theirs = (window.row, window.row + window.height), (window.col, window.col + window.width)
            np.testing.assert_array_equal(raster.array, file.read(bands, window=theirs), strict=True)
            places = np.array(raster.georeference.transform).reshape(2, 3) @ [1, 1, 1]
            corner = file.transform @ Affine.translation(window.col + 1, window.row + 1)
            assert places == pytest.approx((corner.c, corner.f), rel=1e-12)


@pytest.mark.parametrize("bands", [None, [2], [3, 1, 3]], ids=str)
@pytest.mark.parametrize(("form", "dtype"), [("path", "uint16"), ("bytes", "uint8"), ("file", "int16")])
def test_windows_of_jpeg2000(form, dtype, bands, tmp_path) -> None:
    """Lossless tiles come back as rasterio reads them, of a path, of bytes and of an open file."""
    path = tmp_path / "scene.jp2"
    path.write_bytes(jp2(ARRAY.astype(dtype), **UTM))
    source = {"path": path, "bytes": path.read_bytes(), "file": BytesIO(path.read_bytes())}[form]
    with open_raster(source) as opened:
        assert isinstance(opened, OpenGdal)
        assert (opened.dtype, opened.georeference.crs, opened.georeference.transform) == (
            np.dtype(dtype), "EPSG:32632", tuple(UTM["transform"])[:6],
        )  # fmt: skip
        assert_as_rasterio(opened, path, bands)


def test_each_part_is_read_once_in_a_call(tmp_path) -> None:
    """Windows that share tiles, of all bands and of one, have GDAL decode each tile once, and none that they miss."""
    path = tmp_path / "scene.jp2"
    path.write_bytes(jp2(ARRAY[:1], block=128, **UTM))
    with open_raster(path) as opened:
        assert opened.block[1] == 128
        assert opened.block[0] % 128 == 0 or opened.block[0] == SIZE[0]
        assert opened.decoded.sum() == 0
        list(opened.windows([Window(row, 130, 40, 60) for row in (0, 20, 140, 60)]))
        assert opened.decoded.max() == 1
        assert opened.decoded.sum() == -(-SIZE[0] // opened.block[0])  # the second column of tiles alone
        list(opened.windows(WINDOWS))
        assert opened.decoded.max() == 2


VALIDITY = {
    "none": {},
    "nodata": {"nodata": 0},
    "a mask": {"mask": RNG.random(SIZE) < 0.5},
    "a mask and nodata": {"mask": RNG.random(SIZE) < 0.5, "nodata": 0},
    "alpha": {"photometric": "RGB", "alpha": "yes"},
}
GCPS = [GroundControlPoint(row, col, 10 + col / 9, 50 - row / 7, 3) for row in (0, 40) for col in (5, 90.5)]
RPCS = rasterio.rpc.RPC(
    height_off=1.0, height_scale=100.0, lat_off=3.0, lat_scale=4.0, line_off=20.0, line_scale=20.0, long_off=7.0,
    long_scale=8.0, samp_off=25.0, samp_scale=25.0, line_num_coeff=[0.25] * 20, line_den_coeff=[1.5] * 20,
    samp_num_coeff=[2.5] * 20, samp_den_coeff=[3.5] * 20, err_bias=0.25, err_rand=0.75,
)  # fmt: skip
PLACES = {
    "a transform": UTM,
    "pixels that are points": {**UTM, "tags": {"AREA_OR_POINT": "Point"}},
    "a rotation without a code": {
        "crs": "+proj=sinu +R=6371007.181",
        "transform": Affine(9.7, 2.6, 1e6, 2.6, -9.7, 5e6),
    },
    "points": {"crs": "EPSG:4326", "gcps": GCPS},
    "RPCs": {"rpcs": RPCS},
    "nothing": {},
}


def same_facts(one, other) -> None:
    """The two rasters say the same of themselves, and have the same pixels and mask."""
    for name in ("size", "count", "dtype", "nodata", "descriptions", "metadata", "alpha"):
        assert getattr(one, name) == getattr(other, name), name
    mine, others = one.read(), other.read()
    assert_same(mine, others)
    bands = [3, 1]
    assert_same(one.read(WINDOWS[1], bands), other.read(WINDOWS[1], bands))
    if one.alpha is not None:
        assert_same(one.read(WINDOWS[1], [one.alpha, 1]), other.read(WINDOWS[1], [one.alpha, 1]))


def assert_same(one: Raster, other: Raster) -> None:
    np.testing.assert_array_equal(one.array, other.array, strict=True)
    assert (one.mask is None) == (other.mask is None)
    if one.mask is not None:
        np.testing.assert_array_equal(one.mask, other.mask, strict=True)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("validity", VALIDITY)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "float32", "float64"])
def test_a_vrt_of_a_file_is_that_file(dtype, validity, tmp_path) -> None:
    """Pixels, nodata, masks, alpha, descriptions and items are those that our own reader finds in the GeoTIFF."""
    options = VALIDITY[validity]
    array = np.concatenate([ARRAY, ARRAY[:1] % 2])[: 4 if "alpha" in options else 3].astype(dtype)
    names = ("B02", None, "B04", None)[: len(array)]
    items = {"TIFFTAG_DATETIME": "2024:05:06 07:08:09", "SENSOR": "x & y"}
    file = tiff(tmp_path / "a.tif", array, descriptions=names, tags=items, **UTM, **options)
    with open_raster(file) as ours, open_raster(converted(file, tmp_path / "a.vrt", "VRT")) as theirs:
        assert isinstance(theirs, OpenGdal)
        assert not isinstance(ours, OpenGdal)
        same_facts(theirs, ours)
        assert theirs.metadata == items
        assert theirs.alpha == (4 if "alpha" in options else None)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("place", PLACES)
def test_a_vrt_lies_where_its_file_lies(place, tmp_path) -> None:
    """Transform, system, points and coefficients of a window are those that our own reader finds in the GeoTIFF."""
    file = tiff(tmp_path / "a.tif", ARRAY, **PLACES[place])
    with open_raster(file) as ours, open_raster(converted(file, tmp_path / "a.vrt", "VRT")) as theirs:
        one, other = (opened.read(WINDOWS[1]).georeference for opened in (theirs, ours))
        if other is None:
            assert one is None
            return
        assert (one.transform is None) == (other.transform is None)
        if one.transform is not None:
            assert one.transform == pytest.approx(other.transform, rel=1e-14)
        assert [(point.row, point.col) for point in one.gcps] == [(point.row, point.col) for point in other.gcps]
        for mine, said in zip(one.gcps, other.gcps, strict=True):  # a VRT writes ten digits
            assert (mine.x, mine.y, mine.z) == pytest.approx((said.x, said.y, said.z), rel=1e-10)
        assert one.pixel_is_point == other.pixel_is_point
        assert one.rpcs == other.rpcs
        for mine, said in ((one.crs, other.crs), (one.gcps_crs, other.gcps_crs)):
            assert mine == said or rasterio.CRS.from_string(mine) == rasterio.CRS.from_string(said)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_rpcs_without_errors(tmp_path) -> None:
    """Errors that are not stated are -1, as in a TIFF whose writer does not know them (GDAL's RFC 22)."""
    path = converted(tiff(tmp_path / "a.tif", ARRAY, rpcs=RPCS), tmp_path / "a.vrt", "VRT")
    lines = path.read_text().splitlines()
    path.write_text("".join(line for line in lines if 'key="ERR_' not in line))
    with open_raster(path) as raster, rasterio.open(path) as file:
        rpcs = raster.georeference.rpcs
        assert rpcs == file.rpcs
        assert (rpcs.err_bias, rpcs.line_off, rpcs.samp_off) == (None, 20, 25)
    write_geotiff(tmp_path / "b.tif", ARRAY, georeference=Georeference(rpcs=rpcs))
    with tifffile.TiffFile(tmp_path / "b.tif") as tiff_file:
        assert tiff_file.pages[0].tags[50844].value[:4] == (-1, -1, 20, 25)


def test_a_vrt_of_several_files(tmp_path) -> None:
    """Two files side by side with a gap that is nodata are read as rasterio reads them."""
    west, east = (tiff(tmp_path / f"{side}.tif", ARRAY[index : index + 1, :, :150], **UTM)
                  for index, side in enumerate(("west", "east")))  # fmt: skip
    place = "<SRS>EPSG:32632</SRS><GeoTransform>500000,10,0,5000000,0,-10</GeoTransform>"
    path = mosaic(tmp_path / "both.vrt", [(west, 0, 0), (east, 0, 170)], SIZE, "UInt16", place)
    with open_raster(path) as opened:
        assert opened.nodata == 7
        assert_as_rasterio(opened, path)
        assert (opened.read().valid()[:, 150:170] == False).all()  # noqa: E712 - an array of numpy


def test_bands_of_several_dtypes_come_in_one_that_holds_both(tmp_path) -> None:
    """A VRT may have a band of bytes beside one of floats."""
    path = tmp_path / "mixed.vrt"
    for name, dtype in (("a", "uint8"), ("b", "float32")):
        tiff(tmp_path / f"{name}.tif", ARRAY[:1].astype(dtype), **UTM)
    bands = "".join(
        f'<VRTRasterBand dataType="{kind}" band="{number}"><NoDataValue>{number}</NoDataValue><SimpleSource>'
        f'<SourceFilename relativeToVRT="1">{name}.tif</SourceFilename></SimpleSource></VRTRasterBand>'
        for number, (name, kind) in enumerate((("a", "Byte"), ("b", "Float32")), 1)
    )
    path.write_text(
        f'<?xml version="1.0"?>\n<VRTDataset rasterXSize="{SIZE[1]}" rasterYSize="{SIZE[0]}">{bands}</VRTDataset>'
    )
    with open_raster(path) as opened:
        raster = opened.read()
        np.testing.assert_array_equal(raster.array, np.stack([ARRAY[0].astype("uint8"), ARRAY[0]]).astype("float32"))
        # each has a nodata of its own, so that a mask says what no single value can
        assert raster.nodata is None
        np.testing.assert_array_equal(raster.mask, (raster.array[0] != 1) & (raster.array[1] != 2))
        np.testing.assert_array_equal(opened.read(bands=[2]).mask, raster.array[1] != 2)


@pytest.mark.parametrize("version", ["NC", "NC4"])
def test_netcdf_of_one_variable(version, tmp_path) -> None:
    """Its grid is read by its path, nodata and place with it, and by GDAL's name of the variable."""
    source = tiff(tmp_path / "a.tif", ARRAY[:1].astype("float32"), nodata=-9, **{**UTM, "crs": "EPSG:32633"})
    path = converted(source, tmp_path / "a.nc", "netCDF", FORMAT=version)
    for name in (path, f'NETCDF:"{path}":Band1'):
        with open_raster(name) as opened:
            assert (opened.nodata, opened.georeference.crs) == (-9, "EPSG:32633")
            assert_as_rasterio(opened, path)


def test_the_variables_of_a_netcdf_are_named(tmp_path) -> None:
    """A file of several grids is refused with their names; each name opens its own."""
    path = converted(tiff(tmp_path / "a.tif", ARRAY.astype("float32"), **UTM), tmp_path / "a.nc", "netCDF")
    with pytest.raises(InputError, match=r"holds 3 images; give the name of one of them instead: netcdf:") as caught:
        open_raster(path)
    names = str(caught.value).partition("instead: ")[2].split(", ")
    for name, band in zip(names, ARRAY, strict=True):
        with open_raster(name) as opened:
            np.testing.assert_array_equal(opened.read().array[0], band)


def test_hdf5_of_any_kind(tmp_path) -> None:
    """What netCDF's driver opens keeps its place; GDAL's names of the parts of an HDF5 file work too."""
    source = tiff(tmp_path / "a.tif", ARRAY[:1].astype("float32"), **UTM)
    path = converted(source, tmp_path / "a.nc", "netCDF", FORMAT="NC4").rename(tmp_path / "a.h5")
    with open_raster(path) as opened:
        assert opened.georeference.crs == "EPSG:32632"
    with open_raster(f'HDF5:"{path}"://Band1') as opened:
        np.testing.assert_array_equal(np.sort(opened.read().array.ravel()), np.sort(ARRAY[0].ravel()))


def test_a_tiff_that_libtiff_alone_decodes(tmp_path) -> None:
    """A compression that is unknown here is read through GDAL, of a path and of bytes."""
    values = RNG.integers(0, 4, (20, 24))
    path = tmp_path / "next.tif"
    path.write_bytes(next_tiff(values))
    for source in (path, path.read_bytes()):
        with open_raster(source) as opened:
            assert isinstance(opened, OpenGdal)
            np.testing.assert_array_equal(opened.read().array[0], values)


@pytest.mark.parametrize("name", ["a.vrt", "a.nc", "a4.nc"])
def test_what_may_name_other_files_is_opened_by_its_path_alone(name, tmp_path) -> None:
    """A VRT, and NetCDF, of bytes or an open file could reach any file of this machine: they are refused."""
    source = tiff(tmp_path / "a.tif", ARRAY, **UTM)
    driver, options = ("VRT", {}) if name.endswith("vrt") else ("netCDF", {"FORMAT": "NC4" if "4" in name else "NC"})
    path = converted(source, tmp_path / name, driver, **options)
    with path.open("rb") as file:
        for form in (path.read_bytes(), file):
            with pytest.raises(InputError, match="convert it to GeoTIFF, or give it by its path"):
                open_raster(form)


def test_bytes_reach_no_other_driver(tmp_path) -> None:
    """What begins as JPEG 2000 is given to that driver alone, whatever else GDAL would make of it."""
    asked = []
    original = gdal_datasets.Datasets._opened

    def opened(self):
        asked.append(self._drivers)
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gdal_datasets.Datasets, "_opened", opened)
        with pytest.raises(InputError):
            open_raster(b"\x00\x00\x00\x0cjP  \r\n\x87\n<VRTDataset rasterXSize='1' rasterYSize='1'></VRTDataset>")
    assert asked == [(("JP2OpenJPEG",),)]


@pytest.mark.parametrize("name", ["scene.jp2", "scene.vrt", "scene.nc4"])
def test_damage_is_an_error_that_names_the_file(name, tmp_path, capfd) -> None:
    """A file cut short is an InputError when it is opened or read, and GDAL prints nothing."""
    path = tmp_path / name
    source = tiff(tmp_path / "a.tif", ARRAY[:1].astype("float32"), **UTM)
    whole = jp2(ARRAY[:1], **UTM) if name.endswith("jp2") else None
    if whole is None:
        driver = "VRT" if name.endswith("vrt") else "netCDF"
        options = {"FORMAT": "NC4"} if driver == "netCDF" else {}
        whole = converted(source, tmp_path / f"whole{path.suffix[:3]}", driver, **options).read_bytes()
    for part in (0.01, 0.3, 0.8):
        path.write_bytes(whole[: max(12, int(len(whole) * part))])
        with pytest.raises(InputError, match=name), open_raster(path) as opened:
            opened.read()
    assert capfd.readouterr() == ("", "")


def test_a_source_that_is_not_there_is_named(tmp_path) -> None:
    """A VRT may be opened before its sources are; the one that is missing stands in the error."""
    source = tiff(tmp_path / "a.tif", ARRAY, **UTM)
    path = converted(source, tmp_path / "a.vrt", "VRT")
    source.unlink()
    with pytest.raises(InputError, match=r"a\.vrt cannot be read by GDAL: .*a\.tif"), open_raster(path) as opened:
        opened.read()


def test_several_threads_read_at_once(tmp_path) -> None:
    """Each gets its own pixels; no more datasets are open than may be, and none when the raster is closed."""
    path = tmp_path / "scene.jp2"
    path.write_bytes(jp2(ARRAY, **UTM))
    lock, open_now, most = threading.Lock(), set(), 0
    original = gdal_datasets.Datasets._opened

    def opened(self):
        nonlocal most
        dataset = original(self)
        with lock:
            open_now.add(dataset)
            most = max(most, sum(not one.closed for one in open_now))
        return dataset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gdal_datasets.Datasets, "_opened", opened)
        with open_raster(path) as raster, ThreadPoolExecutor(8) as pool:
            for window, found in zip(WINDOWS * 12, pool.map(raster.read, WINDOWS * 12), strict=True):
                np.testing.assert_array_equal(found.array, ARRAY[:, window.rows, window.cols])
        assert all(dataset.closed for dataset in open_now)
    assert 1 <= most <= gdal_datasets._AT_ONCE


def test_a_dataset_that_has_decoded_its_share_is_opened_anew(tmp_path, monkeypatch) -> None:
    """What GDAL keeps in its cache goes with it; the pixels are the same."""
    path = tmp_path / "scene.jp2"
    path.write_bytes(jp2(ARRAY, **UTM))
    count = 0
    original = gdal_datasets.Datasets._opened

    def opened(self):
        nonlocal count
        count += 1
        return original(self)

    monkeypatch.setattr(gdal_datasets.Datasets, "_opened", opened)
    monkeypatch.setattr(gdal_datasets, "_AT_ONCE", 1)
    for share in (1 << 40, 1):
        monkeypatch.setattr(gdal_datasets, "_SHARE", share)
        count = 0
        with open_raster(path) as raster:
            np.testing.assert_array_equal(raster.read().array, ARRAY)
            assert count == (raster.decoded.sum() if share == 1 else 1)
            assert raster.decoded.sum() > 1


def test_gdals_limit_for_all_stays_as_it_is(tmp_path) -> None:
    """Reading here changes no option of the process, nor of a user's own environment."""
    path = tmp_path / "scene.jp2"
    path.write_bytes(jp2(ARRAY[:1], **UTM))
    before = rasterio.env.get_gdal_config("GDAL_CACHEMAX")
    with rasterio.Env(GDAL_NUM_THREADS="2", MY_OPTION="x"):
        options = rasterio.env.getenv()
        open_raster(path).read()
        assert rasterio.env.getenv() == options
    assert rasterio.env.get_gdal_config("GDAL_CACHEMAX") == before
    assert not rasterio.env.hasenv()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files")
@pytest.mark.parametrize("name", ["scene.jp2", "a.vrt"])
def test_closing_leaves_no_file_open(name, tmp_path) -> None:
    """After close, while windows are half read, or an error, no file is open; reading then is an error."""
    source = tiff(tmp_path / "a.tif", ARRAY, **UTM)
    path = tmp_path / name
    if name.endswith("vrt"):
        converted(source, path, "VRT")
    else:
        path.write_bytes(jp2(ARRAY, **UTM))

    opened = open_raster(path)
    windows = opened.windows(WINDOWS)
    next(windows)
    opened.close()
    opened.close()
    with pytest.raises(InputError, match="is closed; open it again"):
        next(windows)
    windows.close()
    assert open_below(tmp_path) == []
    with pytest.raises(InputError, match="is closed"):
        opened.read()


@pytest.mark.parametrize("data", [None, jp2(ARRAY[:1], **UTM)], ids=["path", "bytes"])
def test_a_dataset_in_use_is_closed_when_it_is_given_back(data, tmp_path) -> None:
    """Closing takes nothing from a thread that reads; what it read of goes when it has done."""
    path = tiff(tmp_path / "a.tif", ARRAY[:1], **UTM)
    driver = "GTiff" if data is None else "JP2OpenJPEG"
    datasets = gdal_datasets.Datasets("a file", str(path), ((driver,),), data)
    with datasets.dataset() as dataset:
        datasets.close()
        np.testing.assert_array_equal(dataset.read(), ARRAY[:1])
    assert dataset.closed
    with pytest.raises(InputError, match="a file is closed"), datasets.dataset():
        pass


def test_a_warning_of_rasterios_own_reaches_its_user(tmp_path) -> None:
    """That a file has no place is nothing to warn of here; whoever asks rasterio still gets its warning."""
    path = tmp_path / "scene.jp2"
    with pytest.warns(rasterio.errors.NotGeoreferencedWarning):
        path.write_bytes(jp2(ARRAY[:1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_raster(path).georeference is None
        with pytest.raises(rasterio.errors.NotGeoreferencedWarning):
            rasterio.open(path)
