"""Opening a raster, whatever it comes as, and reading parts of it."""

from __future__ import annotations

from io import BytesIO, RawIOBase
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import rasterio
from files_open import open_below
from PIL import Image
from rasterio.control import GroundControlPoint as RasterioPoint
from rasterio.crs import CRS
from rasterio.io import MemoryFile
from rasterio.transform import Affine, RPCTransformer
from rasterio.windows import Window as RasterioWindow

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.georeference import Georeference
from vllm_mmout.geo.raster.ground_points import GroundControlPoint
from vllm_mmout.geo.raster.opened import open_raster
from vllm_mmout.geo.raster.raster import Raster, Window, as_window
from vllm_mmout.geo.raster.windowed import OpenRaster
from vllm_mmout.geo.raster.writing import write_geotiff

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

ARRAY = np.random.default_rng(7).integers(1, 255, (3, 40, 50)).astype("uint8")
WINDOW = Window(11, 7, 20, 30)


def geotiff(array: np.ndarray = ARRAY, **options: object) -> bytes:
    buffer = BytesIO()
    write_geotiff(buffer, array, **options)
    return buffer.getvalue()


def test_what_a_file_says_is_known_before_a_pixel_is_read() -> None:
    """Size, bands, dtype, nodata, place, descriptions and items stand on the opened raster; nothing is decoded."""
    place = Georeference("EPSG:32614", (30.0, 0.0, 440280.0, 0.0, -30.0, 3159720.0))
    data = geotiff(georeference=place, nodata=0, band_names=("B02", None, "B04"), metadata={"SENSOR": "x"})
    with open_raster(data) as opened:
        assert isinstance(opened, OpenRaster)
        assert (opened.size, opened.count, opened.dtype) == ((40, 50), 3, np.dtype("uint8"))
        assert (opened.nodata, opened.descriptions, opened.alpha) == (0, ("B02", None, "B04"), None)
        assert (opened.georeference.crs, opened.georeference.transform) == (place.crs, place.transform)
        assert opened.metadata == {"SENSOR": "x"}
        assert opened.decoded.sum() == 0


def test_bands_are_named_by_number_or_description() -> None:
    """A window takes bands as Raster.select does, with the same words where one does not exist."""
    with open_raster(geotiff(band_names=("B02", "B03", "B03"))) as opened:
        assert opened.places([3, "B02"]) == [2, 0]
        part = opened.read(WINDOW, ["B02", 3])
        np.testing.assert_array_equal(part.array, ARRAY[[0, 2], WINDOW.rows, WINDOW.cols])
        assert part.descriptions == ("B02", "B03")
        for bands, words in (
            ([4], r"band 4 does not exist \(bands count from 1\); the raster has 3 bands: 1 'B02'"),
            (["B03"], "is the description of 2 bands"),
            ([], "bands is empty"),
        ):
            with pytest.raises(InputError, match=words):
                opened.read(WINDOW, bands)


def test_a_window_can_be_unpacked() -> None:
    """Into row, col, height and width, of which it can be made again."""
    row, col, height, width = Window(1, 2, 3, 4)
    assert (row, col, height, width) == (1, 2, 3, 4)
    assert as_window(list(Window(1, 2, 3, 4))) == Window(1, 2, 3, 4)


def test_windows_may_come_from_a_generator() -> None:
    """Windows that can be gone through only once are read as those of a list."""
    with open_raster(geotiff()) as opened:
        rasters = list(opened.windows(window for window in [WINDOW, Window(0, 0, 2, 2)]))
    assert [(raster.height, raster.width) for raster in rasters] == [(20, 30), (2, 2)]


@pytest.mark.parametrize(
    "window", [Window(0, 0, 41, 50), Window(-1, 0, 5, 5), Window(0, 48, 1, 3), Window(3, 3, 0, 2), Window(50, 0, 1, 1)]
)
def test_a_window_that_does_not_exist_is_refused(window: Window) -> None:
    """A window that leaves the raster, or has no pixels, is an error at once, also as the last of several."""
    with open_raster(geotiff()) as opened:
        with pytest.raises(InputError, match=r"is not within <.* bytes>, which has 40 rows and 50 columns"):
            opened.read(window)
        with pytest.raises(InputError, match="is not within"):
            opened.windows([WINDOW, window])


def test_the_transform_of_a_window_is_that_of_rasterio() -> None:
    """A rotated transform moves along both axes, digit for digit as rasterio moves it."""
    transform = (9.7, 2.6, 1e6, 2.6, -9.7, 5e6)
    data = geotiff(georeference=Georeference("EPSG:3857", transform))
    part = open_raster(data).read(WINDOW)
    assert part.georeference is not None
    assert part.georeference.transform == tuple(Affine(*transform) @ Affine.translation(7, 11))[:6]
    with MemoryFile(geotiff(part.array, georeference=part.georeference)) as memory, memory.open() as file:
        assert file.transform == Affine(*transform) @ Affine.translation(7, 11)


def test_the_points_of_a_window_count_from_its_corner() -> None:
    """Ground control points keep their coordinates and move by the window's corner, outside of it if need be."""
    points = tuple(GroundControlPoint(row, col, 10 + col, 50 - row, 5) for row, col in ((0, 0), (0, 49.5), (39, 3)))
    part = open_raster(geotiff(georeference=Georeference(gcps=points, gcps_crs="EPSG:4326"))).read(WINDOW)
    with MemoryFile(geotiff(part.array, georeference=part.georeference)) as memory, memory.open() as file:
        found, crs = file.gcps
    assert crs == CRS.from_epsg(4326)
    assert [(p.row + 11, p.col + 7, p.x, p.y, p.z) for p in found] == [(p.row, p.col, p.x, p.y, p.z) for p in points]


def test_the_rpcs_of_a_window_point_to_the_same_ground() -> None:
    """A coordinate falls on the pixel of the window that is the same one of the whole, for rasterio."""
    rpcs = rasterio.rpc.RPC(
        height_off=1.0, height_scale=100.0, lat_off=3.0, lat_scale=4.0, line_off=20.0, line_scale=20.0, long_off=7.0,
        long_scale=8.0, samp_off=25.0, samp_scale=25.0, line_num_coeff=[0, 0, -1.0, *[0] * 17],
        line_den_coeff=[1.0, *[0] * 19], samp_num_coeff=[0, 1.0, *[0] * 18], samp_den_coeff=[1.0, *[0] * 19],
        err_bias=0.25, err_rand=0.75,
    )  # fmt: skip
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", dtype="uint8", count=3, height=40, width=50) as file:
            file.write(ARRAY)
            file.rpcs = rpcs
        part = open_raster(bytes(memory.getbuffer())).read(WINDOW)
    with MemoryFile(geotiff(part.array, georeference=part.georeference)) as memory, memory.open() as file:
        written = file.rpcs
        assert (written.line_off, written.samp_off) == (20 - 11, 25 - 7)
        with RPCTransformer(rpcs) as whole, RPCTransformer(written) as window:
            row, col = whole.rowcol(8.0, 4.0, op=float)
            assert window.rowcol(8.0, 4.0, op=float) == pytest.approx((row - 11, col - 7))


def test_a_window_at_the_corner_keeps_the_tags_of_the_file() -> None:
    """What starts at the first pixel has the very georeference of the file."""
    with open_raster(geotiff(georeference=Georeference("EPSG:4326", (1.0, 0.0, 0.0, 0.0, -1.0, 0.0)))) as opened:
        assert opened.read(Window(0, 0, 3, 3)).georeference is opened.georeference


class ForwardOnly(RawIOBase):
    """A file as it comes out of a pipe."""

    def __init__(self, data: bytes) -> None:
        self.data = BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        return self.data.readinto(buffer)


def after(data: bytes) -> BytesIO:
    """A file that stands behind its first bytes."""
    file = BytesIO(b"prefix" + data)
    file.seek(6)
    return file


@pytest.mark.parametrize("form", ["path", "text", "bytes", "open", "buffer", "unbuffered", "pipe", "after", "raster"])
def test_every_form_of_source_gives_the_same_window(form: str, tmp_path: Path) -> None:
    """A path, bytes, files that seek or do not, and a raster in memory are one and the same source."""
    data = geotiff(georeference=Georeference("EPSG:4326", (1.0, 0.0, 0.0, 0.0, -1.0, 0.0)))
    path = tmp_path / "scene.tif"
    path.write_bytes(data)
    with path.open("rb") as file, path.open("rb", buffering=0) as unbuffered:
        source = {
            "path": path, "text": str(path), "bytes": data, "open": file, "buffer": BytesIO(data), "after": after(data),
            "unbuffered": unbuffered, "pipe": ForwardOnly(data), "raster": open_raster(data).read(),
        }[form]  # fmt: skip
        with open_raster(source) as opened:
            for raster in (opened.read(WINDOW), *opened.windows([WINDOW])):
                np.testing.assert_array_equal(raster.array, ARRAY[:, WINDOW.rows, WINDOW.cols], strict=True)
                assert raster.georeference.transform == (1.0, 0.0, 7.0, 0.0, -1.0, -11.0)


def test_a_callers_file_is_read_in_place_and_stays_open() -> None:
    """Of a file object only what is needed is read; it is left at its end, as after read(), and not closed."""

    class Counted(BytesIO):
        total = 0

        def read(self, count: int | None = -1) -> bytes:
            data = super().read(count)
            self.total += len(data)
            return data

    file = Counted(geotiff(np.random.default_rng(0).integers(0, 255, (1, 2000, 2000)).astype("uint8")))
    with open_raster(file) as opened:
        opened.read(Window(0, 0, 10, 10))
    assert file.total < len(file.getvalue()) / 4
    assert not file.closed
    assert file.tell() == len(file.getvalue())


def test_a_callers_file_may_give_less_than_it_is_asked_for() -> None:
    """A file that reads in small portions, as an unbuffered one may, is read to the end of what is wanted."""

    class Portions(BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            return super().read(min(count, 11))

    with open_raster(Portions(geotiff())) as opened:
        np.testing.assert_array_equal(opened.read().array, ARRAY)


def test_what_a_callers_file_raises_reaches_the_caller() -> None:
    """An error of the caller's own file object is not dressed up as a damaged file, when opening or later."""

    class Failing(BytesIO):
        left = 10**9

        def read(self, count: int | None = -1) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise OSError("the cable was pulled")
            return super().read(count)

    data = geotiff()
    for reads in range(60):
        file = Failing(data)
        file.left = reads
        try:
            open_raster(file).read()
        except OSError as error:
            assert str(error) == "the cable was pulled"  # noqa: PT017 - it may also not be raised
        else:
            break
    assert 10 < reads < 59


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files")
def test_a_file_of_ours_is_closed(tmp_path: Path) -> None:
    """After close, or an error while opening, the file is closed; closing twice is fine; reading then is an error."""
    path = tmp_path / "scene.tif"
    path.write_bytes(geotiff())
    opened = open_raster(path)
    rasters = opened.windows([WINDOW, WINDOW])
    next(rasters)
    assert len(open_below(tmp_path)) == 1
    opened.close()
    opened.close()
    assert open_below(tmp_path) == []
    for again in (opened.read, lambda: opened.windows([WINDOW]), lambda: next(rasters)):
        with pytest.raises(InputError, match=r"scene\.tif is closed; open it again"):
            again()
    path.write_bytes(geotiff()[:-4000])
    with pytest.raises(InputError):
        open_raster(path)
    assert open_below(tmp_path) == []


def test_a_picture_is_read_by_windows_as_pillow_crops_it() -> None:
    """A PNG with alpha is decoded as a whole; windows of it, and their mask, are what Pillow's crop gives."""
    rgba = np.concatenate([ARRAY, (ARRAY[:1] > 120) * np.uint8(255)])
    picture = Image.fromarray(rgba.transpose(1, 2, 0))
    buffer = BytesIO()
    picture.save(buffer, "PNG")
    crop = np.asarray(picture.crop((7, 11, 37, 31))).transpose(2, 0, 1)
    with open_raster(buffer.getvalue()) as opened:
        assert (opened.block, opened.block_bytes, opened.alpha) == ((40, 50), 4 * 40 * 50, 4)
        part = opened.read(WINDOW)
        np.testing.assert_array_equal(part.array, crop)
        np.testing.assert_array_equal(part.mask, crop[3] > 0)
        assert part.alpha == 4
        some = opened.read(WINDOW, [2])
        np.testing.assert_array_equal(some.array, crop[1:2])
        np.testing.assert_array_equal(some.mask, crop[3] > 0)
        assert opened.read(WINDOW, [4]).mask is None


def test_a_window_of_a_raster_in_memory_is_a_copy() -> None:
    """Writing into a window leaves the raster as it was."""
    raster = Raster(ARRAY.copy(), mask=np.ones((40, 50), bool))
    part = open_raster(raster).read(WINDOW)
    part.array[:] = 0
    part.mask[:] = False
    np.testing.assert_array_equal(raster.array, ARRAY)
    assert raster.mask.all()
    assert np.shares_memory(open_raster(raster).read().array, raster.array)


def test_gcps_written_by_rasterio_agree() -> None:
    """A window of a file with points by rasterio lies where rasterio's own window lies."""
    points = [RasterioPoint(row, col, col / 9, -row / 7, 0) for row in (0, 39) for col in (0, 49)]
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", dtype="uint8", count=3, height=40, width=50) as file:
            file.gcps = (points, CRS.from_epsg(4326))
            file.write(ARRAY)
        part = open_raster(bytes(memory.getbuffer())).read(WINDOW)
        with memory.open() as file:
            theirs = file.read(window=RasterioWindow(7, 11, 30, 20))
    np.testing.assert_array_equal(part.array, theirs)
    assert [(gcp.row, gcp.col) for gcp in part.georeference.gcps] == [(p.row - 11, p.col - 7) for p in points]


class _CountedBand(int):
    """The place of a band, which counts how often it is compared."""

    comparisons = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        _CountedBand.comparisons += 1
        return int(self) == other


@pytest.mark.heavy
@pytest.mark.parametrize("opener", ["tifffile", "GDAL"])
def test_the_work_of_a_read_grows_with_the_number_of_bands_and_not_with_its_square(
    opener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of some hundred bytes may declare 65,535 bands; each is looked up at once, and read in its order."""
    array = np.arange(300, dtype="uint16").reshape(300, 1, 1)
    path = tmp_path / "bands.tif"
    path.write_bytes(geotiff(array))
    if opener == "GDAL":
        with ZipFile(tmp_path / "bands.zip", "w") as archive:
            archive.write(path, "bands.tif")
    with open_raster(path if opener == "tifffile" else f"/vsizip/{tmp_path}/bands.zip/bands.tif") as opened:
        monkeypatch.setattr(opened, "places", lambda bands: [_CountedBand(band - 1) for band in bands])
        monkeypatch.setattr(_CountedBand, "comparisons", 0)
        backwards = range(300, 0, -1)
        np.testing.assert_array_equal(opened.read(bands=backwards).array, array[::-1])
    assert _CountedBand.comparisons <= 2 * len(array)
