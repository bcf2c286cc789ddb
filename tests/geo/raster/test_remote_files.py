"""Files on servers: what is read of them is what the file has, and not much more than that is fetched."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from http_server import a_running_server, a_server, open_sockets  # noqa: F401 - fixtures

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo.raster.opened import open_raster, read_raster
from vllm_mmout.geo.raster.raster import Window
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.geo.raster.remote.http_file import open_remote

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

QUICK = FetchOptions(timeout=10, retries=2, backoff=0.01)
DATA = np.random.default_rng(1).bytes(700_001)


@pytest.fixture(name="scene", scope="module", params=["pixel", "band"])
def a_scene(request, tmp_path_factory):
    """A GeoTIFF of six bands in tiles, about 3 MiB."""
    path = tmp_path_factory.mktemp("scene") / f"{request.param}.tif"
    array = np.random.default_rng(2).integers(0, 1000, (6, 500, 700), np.uint16)
    profile = {"count": 6, "height": 500, "width": 700, "dtype": "uint16", "crs": "EPSG:32614"}
    layout = {"tiled": True, "blockxsize": 128, "blockysize": 128, "compress": "deflate", "interleave": request.param}
    place = rasterio.Affine(30, 0, 440280, 0, -30, 3159720)
    with rasterio.open(path, "w", driver="GTiff", transform=place, nodata=7, **profile, **layout) as file:
        file.write(array)
    return path


def rasterios(path, window=None):
    """What rasterio reads of a file."""
    with rasterio.open(path) as file:
        if window is None:
            return file.read()
        return file.read(window=rasterio.windows.Window(window.col, window.row, window.width, window.height))


@pytest.mark.parametrize("ranges", [True, False], ids=["parts", "whole"])
def test_a_scene_on_a_server_is_that_on_the_disk(server, scene, ranges):
    """Pixels, place on Earth, nodata and name, from a server that gives parts and from one that does not."""
    address = server.serve("/some/scene.tif", scene, ranges=ranges)
    windows = [Window(0, 0, 500, 700), Window(130, 90, 1, 300), Window(499, 699, 1, 1)]
    with open_raster(address) as remote, open_raster(scene) as local:
        for window in windows:
            np.testing.assert_array_equal(remote.read(window).array, rasterios(scene, window), strict=True)
        assert (remote.georeference, remote.nodata, remote.size) == (local.georeference, local.nodata, local.size)
        assert remote.name == address
    assert (len(server.asked) > 1) == ranges


def test_no_byte_of_a_scene_is_fetched_twice(server, scene):
    """Read by windows in the order of its rows, as the engine does, it is fetched once as a whole."""
    with open_raster(server.serve("/scene.tif", scene)) as raster:
        windows = [Window(row, col, 128, 128) for row in range(0, 384, 128) for col in range(0, 640, 128)]
        for window, part in zip(windows, raster.windows(windows), strict=True):
            np.testing.assert_array_equal(part.array, rasterios(scene, window))
    assert server.sent("/scene.tif") <= scene.stat().st_size
    assert len(server.asked) < 40


@pytest.fixture(name="large", scope="module")
def a_large_scene(tmp_path_factory):
    """A cloud-optimised GeoTIFF by GDAL's driver: 8192 pixels square, 171 MiB, not compressed, noise in its middle."""
    folder = tmp_path_factory.mktemp("large")
    sparse, path = folder / "sparse.tif", folder / "large.tif"
    options = {"dtype": "uint16", "count": 1, "height": 8192, "width": 8192, "tiled": True, "SPARSE_OK": True}
    transform = rasterio.Affine(10, 0, 500_000, 0, -10, 5_000_000)
    noise = np.random.default_rng(3).integers(1, 2**16, (1, 2048, 2048), "uint16")
    with rasterio.open(sparse, "w", driver="GTiff", crs="EPSG:32632", transform=transform, **options) as file:
        file.write(noise, window=((4096, 6144), (2048, 4096)))
    rasterio.shutil.copy(sparse, path, driver="COG", COMPRESS="NONE", BLOCKSIZE=512, BIGTIFF="IF_SAFER")
    sparse.unlink()
    yield path
    path.unlink()


@pytest.mark.heavy
def test_a_window_of_a_large_scene(server, large):
    """512 x 512 pixels, across four tiles: they are right, and less than 5 % of the file has been fetched."""
    validator = pytest.importorskip("rio_cogeo.cogeo", reason="the validator is rio-cogeo's")
    assert large.stat().st_size >= 170 * 2**20
    assert validator.cog_validate(large, strict=True)[0]
    window = Window(9 * 512 + 100, 6 * 512 + 37, 512, 512)
    with open_raster(server.serve("/large.tif", large)) as raster:
        pixels = raster.read(window).array
    np.testing.assert_array_equal(pixels, rasterios(large, window), strict=True)
    assert pixels.all()
    assert server.sent("/large.tif") < 0.05 * large.stat().st_size
    assert server.sent("/large.tif") < 4 * 2**20  # four tiles of 512 KiB, and the directories


@pytest.mark.parametrize("ranges", [True, False], ids=["parts", "whole"])
def test_a_picture_on_a_server(server, ranges):
    """It is read whole."""
    from PIL import Image

    picture = np.random.default_rng(4).integers(0, 256, (300, 200, 3), np.uint8)
    stored = io.BytesIO()
    Image.fromarray(picture).save(stored, "PNG")
    raster = read_raster(server.serve("/picture.png", stored.getvalue(), ranges=ranges))
    np.testing.assert_array_equal(raster.array, np.moveaxis(picture, -1, 0))
    assert server.sent("/picture.png") == len(stored.getvalue())


def test_what_is_no_image_is_told_by_its_beginning(server):
    """A page of a server is named as such; of a large file that is no image the beginning alone is fetched."""
    page = server.serve("/page.tif", b"<!DOCTYPE html><html><body>Please log in</body></html>")
    with pytest.raises(InputError, match=r"/page\.tif is not an image .* an HTML page, such as a server sends"):
        open_raster(page)
    with pytest.raises(InputError, match=r"/paper\.tif is not an image .* a PDF"):
        open_raster(server.serve("/paper.tif", b"%PDF-1.7" + DATA))
    assert server.sent("/paper.tif") < 70_000


@pytest.mark.parametrize("ranges", [True, False], ids=["parts", "whole"])
def test_an_empty_file(server, ranges):
    """Is called empty."""
    with pytest.raises(InputError, match=r"/empty\.tif is empty"):
        open_raster(server.serve("/empty.tif", b"", ranges=ranges))


@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 131072, 700_001])
@pytest.mark.parametrize("ranges", [True, False], ids=["parts", "whole"])
def test_bytes_at_any_place(server, size, ranges):
    """What is read is what a local file gives, up to the end and behind it."""
    local = io.BytesIO(DATA[:size])
    with open_remote(server.serve("/data", DATA[:size], ranges=ranges), QUICK) as file:
        assert file.seek(0, 2) == local.seek(0, 2)
        for at, count in [(0, 4), (size - 3, 10), (size, 5), (size + 9, 1), (100, 0), (65530, 12), (3, -1)]:
            if at >= 0:
                file.seek(at)
                local.seek(at)
                assert file.read(count) == local.read(count)
                assert file.tell() == local.tell()
        with pytest.raises((ValueError, OSError)):
            file.seek(-1)
    assert file.closed


def test_many_threads_read_at_once(server):
    """Each gets its bytes, none is fetched twice, and none waits for another one's."""
    gate = threading.Barrier(3, timeout=30)

    def gated(answer):
        if answer.number > 1:
            gate.wait()
        answer.file(DATA)

    with open_remote(server.answer("/data", gated), QUICK) as file, ThreadPoolExecutor(3) as pool:
        places = [100_000, 400_000, 650_000]
        got = list(pool.map(lambda at: file.read_at(at, 100), places))  # the three must be asked for together
        assert got == [DATA[at : at + 100] for at in places]
        server.serve("/data", DATA)
        places = [at * 7919 % 600_000 for at in range(300)]
        got = list(pool.map(lambda at: file.read_at(at, 50_000), places))
        assert got == [DATA[at : at + 50_000] for at in places]
    assert server.sent("/data") <= len(DATA)


@pytest.mark.parametrize("how", ["by address", "open already"])
@pytest.mark.parametrize("scene", ["band"], indirect=True)
def test_the_bands_of_a_window_are_asked_for_together(server, scene, how):
    """Where each lies elsewhere in the file, a window takes as long as one answer, not as six."""
    gate = threading.Barrier(6, timeout=30)

    def gated(answer):
        gate.wait()
        answer.file(scene)

    window = Window(260, 260, 100, 100)
    address = server.serve("/scene.tif", scene)
    with open_remote(address, QUICK) as file, open_raster(address if how == "by address" else file) as raster:
        server.asked.clear()
        server.answer("/scene.tif", gated)
        np.testing.assert_array_equal(raster.read(window).array, rasterios(scene, window))
    assert len(server.asked) == 6


def test_a_file_that_was_open_already_stays_open(server, scene):
    """It is left at its end by a raster that is closed; one that its owner closes meanwhile is an error."""
    with open_remote(server.serve("/scene.tif", scene), QUICK) as file:
        raster = open_raster(file)
        raster.close()
        assert (file.closed, file.tell()) == (False, scene.stat().st_size)
        with pytest.raises(InputError, match="closed; open it again"):
            raster.read()
        file.seek(0)
        assert file.read(100) == scene.read_bytes()[:100]
        file.seek(0)
        raster = open_raster(file)
    with pytest.raises((ValueError, InputError), match="closed"):
        raster.read(Window(260, 260, 100, 100))
    raster.close()


@pytest.mark.heavy
@pytest.mark.parametrize("ranges", [True, False], ids=["parts", "whole"])
def test_nothing_is_left_of_a_closed_raster(server, scene, ranges):
    """No socket, no thread; reading on is an error that says so."""
    server.quiet()
    before = open_sockets(), set(threading.enumerate())
    raster = open_raster(server.serve("/scene.tif", scene, ranges=ranges))
    windows = raster.windows([Window(0, 0, 300, 300), Window(200, 300, 300, 300)])
    next(windows)
    raster.close()
    raster.close()
    with pytest.raises(InputError, match="closed; open it again"):
        raster.read()
    windows.close()
    # Those that fetch are told to end, not waited for, and each holds its socket until then.
    server.until(lambda: not set(threading.enumerate()) - before[1], "a thread is left")
    server.quiet()
    assert not open_sockets() - before[0]


def test_closing_ends_reads_in_other_threads(server):
    """A thread that waits for a server gets an error as soon as the file is closed, not when its time is over."""
    asked = threading.Event()

    def stalls(answer):
        if answer.number > 1:
            asked.set()
            answer.told.ending.wait(60)
        answer.file(DATA)

    file = open_remote(server.answer("/data", stalls), FetchOptions(timeout=1000))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(file.read_at, 300_000, 10)
        asked.wait(30)
        file.close()
        with pytest.raises(InputError, match="is closed"):
            reading.result(30)


def test_a_file_that_is_larger_than_the_limit(server, monkeypatch, scene):
    """A picture in parts, a file whose server says its size: refused before it is fetched, with limit and setting."""
    monkeypatch.setenv("MMOUT_FETCH_LIMIT", "500K")
    says = r"the limit is 512000; raise MMOUT_FETCH_LIMIT"
    with pytest.raises(InputError, match=rf"/whole\.tif is too large .* {says}"):
        open_raster(server.serve("/whole.tif", scene, ranges=False))
    with pytest.raises(InputError, match=rf"/picture\.png is too large .* {says}"):
        open_raster(server.serve("/picture.png", b"\x89PNG\r\n\x1a\n" + DATA))
    assert server.sent("/picture.png") < 70_000
    with open_raster(server.serve("/parts.tif", scene)) as raster:
        np.testing.assert_array_equal(raster.read().array, rasterios(scene))
    monkeypatch.setenv("MMOUT_FETCH_LIMIT", "lots")
    with pytest.raises(OptionError, match="MMOUT_FETCH_LIMIT must be a number of bytes"):
        open_raster(server.address + "/whole.tif")
