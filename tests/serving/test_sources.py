"""What a request may name: uploads, data URLs, addresses, files of one folder; and that nothing else is reached."""

from __future__ import annotations

import base64
import io
import os
import socket
import tempfile
import tracemalloc
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import rasterio
from files_open import open_below
from http_server import a_running_server, a_server, no_proxies, open_sockets  # noqa: F401 - fixtures
from PIL import Image

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import open_raster
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.models.inputs.open_input import opened_planes
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.inputs import data_urls
from vllm_mmout.serving.inputs.sources import Sources
from vllm_mmout.serving.inputs.uploads import Upload
from vllm_mmout.serving.options import ServingOptions

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")]

HERE = ["127.0.0.1"]
ARRAY = np.random.default_rng(4).integers(0, 256, (3, 40, 50), np.uint8)


def as_png(array=ARRAY):
    """A picture of it."""
    made = io.BytesIO()
    Image.fromarray(np.moveaxis(array, 0, -1)).save(made, "PNG")
    return made.getvalue()


def as_tiff(array=ARRAY, **options):
    """A GeoTIFF of it by rasterio."""
    size = {"count": array.shape[0], "height": array.shape[1], "width": array.shape[2], "dtype": array.dtype}
    with rasterio.io.MemoryFile() as memory:
        with memory.open(
            driver="GTiff", transform=rasterio.Affine(10, 0, 500_000, 0, -10, 5_000_000), **size, **options
        ) as file:
            file.write(array)
        return memory.read()


PNG, TIFF = as_png(), as_tiff()
BELOW = ", as it lies below no address of --mmout-read-from"


def sources(local_path=None, domains=(), **limits):
    """As a server has them."""
    return Sources(ServingOptions(**limits), local_path=local_path, domains=domains)


def upload(data, name="scene.tif"):
    """What a client sent."""
    return Upload(name, io.BytesIO(data), len(data))


def pixels(data, made=None, **options):
    """What is read of one input."""
    with (made or sources()).opened(data, **options) as file, open_raster(file) as raster:
        return raster.read().array


def refused(data, says, made=None):
    """Check that an input is refused by our error, whose words are given back."""
    with pytest.raises(InputError, match=says) as error, (made or sources()).opened(data):
        pytest.fail("it was opened")
    return str(error.value)


@pytest.mark.parametrize("data", [PNG, TIFF], ids=["png", "tiff"])
def test_an_upload(data):
    """Is an open file with the client's name that stands at its start, and is closed at the end."""
    sent = upload(data, "some/folder/T32_B04.tif")
    with sources().opened(sent) as file:
        assert (file.name, file.tell(), file.seekable()) == ("T32_B04.tif", 0, True)
        with open_raster(file) as raster:
            np.testing.assert_array_equal(raster.read().array[:3], ARRAY, strict=True)
    assert file.closed
    assert not sent.file.closed  # the form's
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


@pytest.mark.parametrize(
    "name", ["", "/", "a\nb\0c.tif", "x" * 5000, "../../etc/passwd", "C:\\a\\b.tif", "\u202egpj.exe"]
)
def test_names_of_uploads(name):
    """Are shown in one line, without folders, in some hundred letters at most; no file is looked for."""
    with sources().opened(upload(PNG, name)) as file:
        assert file.name.isprintable()
        assert 0 < len(file.name) <= 200
        assert "/" not in file.name
        assert "\\" not in file.name


def test_all_that_is_in_lists_and_dicts():
    """Is opened where it stands; what is no file stays."""
    data = {"a": [upload(PNG), 5, None], "b": (upload(TIFF), 2.5), "c": [[1, 2], "text"]}
    data["c"][1] = "data:image/png;base64," + base64.b64encode(PNG).decode()
    with sources().opened(data) as found:
        assert [found["a"][0].read(4), found["a"][1:]] == [PNG[:4], [5, None]]
        assert isinstance(found["b"], tuple)
        assert [found["b"][0].read(4), found["b"][1]] == [TIFF[:4], 2.5]
        assert found["c"][0] is data["c"][0]
        assert found["c"][1].read(4) == PNG[:4]
        files = [found["a"][0], found["b"][0], found["c"][1]]
    assert all(file.closed for file in files)


def test_texts_of_models_that_take_text():
    """Stay as they are, whatever they name; uploads are opened all the same."""
    data = {"texts": ["file:///etc/hosts", "/etc/passwd", "http://127.0.0.1/"], "image": upload(PNG)}
    with sources().opened(data, texts=False) as found:
        assert found["texts"] is data["texts"]
        assert found["image"].read(4) == PNG[:4]


def test_files_opened_before_one_is_refused_are_closed(server, tmp_path, monkeypatch):
    """None is left open, of this machine or of others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("vllm_mmout.serving.inputs.data_urls._IN_MEMORY", 1)
    server.quiet()
    before = open_sockets()
    address = server.serve("/scene.tif", as_tiff(np.zeros((1, 600, 600), np.uint16)))
    refused(
        [upload(PNG), "data:image/png;base64," + base64.b64encode(PNG).decode(), address, "x"],
        "nothing that",
        sources(domains=HERE),
    )
    server.quiet()
    assert not open_sockets() - before
    assert open_below(tmp_path) == []


def test_files_of_one_scene_are_called_by_their_names(server):
    """Uploads and addresses give bands their names, as paths do."""
    bands = [as_tiff(ARRAY[[place]]) for place in range(3)]
    address = server.serve("/x/S2_B8A.tif", bands[2])
    mapper = RasterMapper(model="flood", bands=("B04", "B8A", "B02"), max_size=512)
    data = [upload(bands[0], "S2_B02.tif"), upload(bands[1], "S2_B04.tif"), address]
    with sources(domains=HERE).opened(data) as files:
        raster, numbers, _ = opened_planes(files, OutputParams(), mapper)
        with raster:
            np.testing.assert_array_equal(raster.read(bands=numbers).array, ARRAY[[1, 2, 0]])


@pytest.mark.parametrize(
    "encode",
    [
        base64.encodebytes,
        base64.urlsafe_b64encode,
        lambda data: base64.b64encode(data).rstrip(b"="),
        lambda data: base64.encodebytes(data).replace(b"\n", b"\r\n").rstrip(b"=\r\n"),
    ],
)
@pytest.mark.parametrize("length", range(253, 257))
def test_base64_of_any_writer(encode, length, monkeypatch):
    """With line breaks, without padding, and in the letters for URLs, wherever the text is cut."""
    monkeypatch.setattr("vllm_mmout.serving.inputs.data_urls._PIECE", 7)
    data = bytes(range(256))[-length:]
    file, _ = data_urls.open_data_url("data:;base64," + encode(data).decode(), 1000)
    with file:
        file.seek(0)
        assert file.read() == data


@pytest.mark.parametrize("mark", [";base64", ";charset=x;BASE64", ";name=a%20b.tif;base64"])
@pytest.mark.parametrize("data", [PNG, TIFF], ids=["png", "tiff"])
def test_data_urls(data, mark):
    """In base64, with the name that they may have."""
    text = f"DATA:image/png{mark}," + base64.b64encode(data).decode()
    assert pixels(text)[:3].tolist() == ARRAY.tolist()
    with sources().opened(text) as file:
        assert file.name == ("a b.tif" if "name" in mark else f"<data URL of {len(data)} bytes>")


def test_data_urls_with_escapes(monkeypatch):
    """Of base64 and of plain bytes, decoded piece by piece."""
    for piece in (62, 63, 64, 65):
        monkeypatch.setattr(data_urls, "_PIECE", piece)
        assert pixels("data:," + quote(PNG)).tolist() == ARRAY.tolist()
        assert pixels("data:;base64," + quote(base64.b64encode(PNG), safe="")).tolist() == ARRAY.tolist()
        assert pixels("data:;base64," + base64.b64encode(PNG).decode()).tolist() == ARRAY.tolist()


def test_a_data_url_of_escapes_alone_takes_little_memory():
    """Not some hundred bytes an escape."""
    text = "data:," + "%41" * 2**21
    with sources().open_text("data:,A"):
        pass  # imports what it needs, which is not counted
    tracemalloc.start()
    try:
        with sources().open_text(text) as file:
            assert file.seek(0, 2) == 2**21
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * 2**20


def test_very_many_values_beside_files():
    """Are refused before all are looked at; those of a model that takes any JSON are never looked at."""
    data = [[1] * 2**10] * (2**10 + 1)
    with sources().opened(data[:1000]) as found:
        assert found is not data
        assert found == data[:1000]
    refused(data, "more than 1048576 values")


WRONG_DATA = [
    "data:",
    "data:image/png;base64",
    "data:;base64,%",
    "data:;base64,a",
    "data:;base64,aGV$bG8=",
    "data:;base64,aG==bG8=",
    "data:;base64,\u4e2d",
]


@pytest.mark.parametrize(
    "text", [*WRONG_DATA, "data:" + "x" * 5000 + ",", "data:;base64,aGVsbG8=", "data:,", "data:,\xff"]
)
def test_data_urls_that_hold_no_image(text):
    """Are refused, in some words of ours."""
    assert len(refused(text, "data URL")) < 500


@pytest.mark.parametrize("begin", ["data:;base64,", "data:,"])
def test_data_urls_that_are_too_long(begin):
    """Are refused by the size that their text has, or they turn out to have."""
    text = base64.b64encode(PNG).decode() if "base64" in begin else quote(PNG)
    assert pixels(begin + text, sources(max_upload=len(PNG))).shape == ARRAY.shape
    for limit in (len(PNG) - 1, 5):
        refused(begin + text, f"more than {limit} bytes, .* --mmout-max-upload", sources(max_upload=limit))


NOTHING = [
    *[
        "",
        " ",
        "scene.tif",
        "/etc/passwd",
        "../x",
        "C:\\x.tif",
        "s3://bucket/x.tif",
        "gs://b/x",
        "az://b/x",
        "ftp://h/x",
    ],
    *[
        "gopher://h/x",
        "jar:http://h/x!/y",
        "/vsicurl/http://127.0.0.1/x",
        "/vsimem/x",
        'NETCDF:"/etc/x.nc":v',
        "HDF5:x:y",
    ],
    *[
        "<VRTDataset></VRTDataset>",
        "\0",
        "x" * 10_000,
        "filename",
        "httpx://h",
        "http:/h/x",
        "http:h",
        "//h/x",
        "~/.ssh",
    ],
    *[
        "\ud800",
        "blob:http://h/x",
        "view-source:http://h/",
        "dict://h:1/",
        "ldap://h",
        "javascript:1",
        "GTIFF_DIR:1:x.tif",
        "/vsizip//etc/passwd",
        "/vsistdin/",
        "WMS:http://127.0.0.1/x",
        'ZARR:"/vsicurl/http://127.0.0.1/x"',
        "PG:host=127.0.0.1 port=1",
        "\\\\127.0.0.1\\x",
        "x\0y",
        ".",
        "/dev/zero",
    ],
]


@pytest.mark.parametrize("text", NOTHING)
def test_texts_that_name_nothing(text):
    """Paths, names of GDAL's and other schemes: the error says what to send, and shows some of it."""
    said = refused(
        [text],
        rf"nothing that this server reads({BELOW})?; send the file itself .* data: URL .*https://",
    )
    assert len(said) < 320


def test_paths_of_python():
    """Never pass: no route makes one, and none is opened."""
    refused({"a": Path("/etc/hosts")}, "a path is nothing that this server reads")


@pytest.mark.parametrize(
    "text",
    [
        "http://[",
        "http://",
        "http://a b/",
        "http://a\r\nHost: b/",
        "http://a/\0",
        "https://a\\@b/",
        "http://\ud800/",
        "http://127.0.0.1:99999/x",
        "http://127。0。0。1/",
        "http://①②⑦.0.0.1/",
    ],
)
def test_addresses_that_cannot_be_understood(server, text):
    """Are errors of the input."""
    refused(text, "the address|an address")


def test_too_many_and_too_deep():
    """Files beyond some hundred, and lists in lists, are refused."""
    refused([upload(PNG)] * 129, "more than 128 files")
    data = []
    for _ in range(5000):
        data = [data]
    refused(data, "nested deeper than 32")


# Addresses


def test_a_scene_on_a_server_is_read_by_parts(server):
    """What is not asked for of a tiled GeoTIFF is not fetched."""
    array = np.random.default_rng(5).integers(0, 60_000, (1, 2048, 2048), np.uint16)
    data = as_tiff(array, tiled=True, blockxsize=256, blockysize=256)
    with sources(domains=HERE).opened(server.serve("/scene.tif", data)) as file, open_raster(file) as raster:
        assert raster.size == (2048, 2048)
        assert file.name == server.address + "/scene.tif"
    assert server.sent("/scene.tif") < len(data) / 20


def test_a_scene_on_a_server_without_parts(server):
    """Is fetched whole, up to the limit of uploads, and has its name."""
    address = server.serve("/S2_B04.tif", TIFF, ranges=False) + "?key=secret"
    with sources(domains=HERE).opened(address) as file:
        assert file.name == "S2_B04.tif"
        assert file.read() == TIFF
    said = refused(address, f"the limit is {len(TIFF) - 1}; raise", sources(domains=HERE, max_upload=len(TIFF) - 1))
    assert "secret" not in said


def test_this_server_itself(server):
    """Is not asked, unless it is listed."""
    address = server.serve("/scene.tif", TIFF)
    refused(address, "--allowed-media-domains")
    assert server.asked == []
    assert pixels(address, sources(domains=HERE)).tolist() == ARRAY.tolist()


def test_no_redirects_where_vllm_follows_none(server, monkeypatch):
    """By its variable VLLM_MEDIA_URL_ALLOW_REDIRECTS."""
    server.serve("/there", TIFF)
    address = server.answer("/scene.tif", lambda a: a.redirect("/there"))
    assert pixels(address, sources(domains=HERE)).tolist() == ARRAY.tolist()
    monkeypatch.setenv("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
    server.asked.clear()
    refused(address, "redirects are not followed", sources(domains=HERE))
    assert [asked.path for asked in server.asked] == ["/scene.tif"]


def _endless(answer):
    answer.send_response(200)
    answer.end_headers()
    while not answer.told.ending.is_set():
        answer.write(bytes(65536))


def _huge_headers(answer):
    answer.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 200_000 + b"\r\n\r\n")
    answer.close_connection = True


def _many_headers(answer):
    answer.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 5000 + b"\r\n")
    answer.close_connection = True


def _slow(answer):
    answer.send_response(200)
    answer.end_headers()
    while not answer.told.ending.wait(0.05):
        answer.write(b"a")


def _silent(answer):
    answer.told.ending.wait(60)


@pytest.mark.parametrize("what", [_endless, _huge_headers, _many_headers, _slow, _silent])
def test_servers_that_mean_no_good(server, monkeypatch, what):
    """Bodies without an end or without progress, and absurd headers: errors of the input; nothing is left open."""
    monkeypatch.setenv("MMOUT_FETCH_TIMEOUT", "0.5")
    monkeypatch.setenv("MMOUT_FETCH_RETRIES", "0")
    server.quiet()
    before = open_sockets()
    address = server.answer("/scene.tif", what)
    refused(address, f"^{server.address}/scene.tif", sources(domains=HERE, max_upload=2**20))
    server.ending.set()  # its own ends
    server.quiet()
    server.ending.clear()
    assert not open_sockets() - before


@pytest.mark.parametrize("body", [b"", b"<html></html>", b"<VRTDataset/>", b"CDF\x01" + bytes(99)])
def test_what_is_no_image_on_a_server(server, body):
    """Is refused as an upload of it is."""
    refused(server.serve("/x", body), "empty|not an image", sources(domains=HERE))


# What files declare


@pytest.mark.parametrize("form", ["VRT", "netCDF", "BAG"])
def test_files_that_name_other_files(tmp_path, form):
    """As VRT and NetCDF, are no images here: neither as uploads nor in the folder that may be read."""
    secret = tmp_path / "secret.tif"
    secret.write_bytes(TIFF)
    source = f"<SimpleSource><SourceFilename>{secret}</SourceFilename></SimpleSource>"
    band = f'<VRTRasterBand dataType="Byte" band="1">{source}</VRTRasterBand>'
    vrt = f'<VRTDataset rasterXSize="50" rasterYSize="40">{band}</VRTDataset>'
    data = {"VRT": vrt.encode(), "netCDF": b"CDF\x01" + bytes(500), "BAG": b"\x89HDF\r\n\x1a\n" + bytes(500)}[form]
    file = tmp_path / "scene.tif"
    file.write_bytes(data)
    refused(upload(data, str(secret)), "is not an image that can be read")
    refused(file.as_uri(), "is not an image that can be read", sources(str(tmp_path)))


def test_more_pixels_than_the_server_takes():
    """Are refused with both numbers and the flag, before any is decoded."""
    assert pixels(upload(PNG), sources(max_pixels=2000)).shape == ARRAY.shape
    for data in (PNG, TIFF):
        says = "scene.tif has 40 x 50 pixels, this server takes at most 1999; .* a larger --mmout-max-pixels"
        refused(upload(data), says, sources(max_pixels=1999))


def test_more_than_can_be_decoded_at_once(monkeypatch):
    """Is refused though the pixels are few."""
    monkeypatch.setattr("vllm_mmout.serving.inputs.pixel_limit._MAX_DECODED", 2**20)
    refused(upload(as_png(np.zeros((3, 600, 600), np.uint8))), "takes 1 MiB to be decoded, .* gdal_translate -of COG")


# Files of this machine


@pytest.fixture(name="folder")
def a_folder(tmp_path):
    """A folder that may be read, and beside it one that may not."""
    allowed = tmp_path / "allowed"
    (allowed / "inner").mkdir(parents=True)
    (tmp_path / "allowed-not").mkdir()
    for name in ["allowed/a b.tif", "allowed/inner/S2_B04.tif", "secret.tif", "allowed-not/x.tif"]:
        (tmp_path / name).write_bytes(TIFF)
    (allowed / "good").symlink_to(allowed / "inner")
    (allowed / "good.tif").symlink_to("inner/S2_B04.tif")
    (allowed / "bad.tif").symlink_to(tmp_path / "secret.tif")
    (allowed / "bad").symlink_to(tmp_path)
    (allowed / "gone.tif").symlink_to(tmp_path / "nothing.tif")
    (allowed / "loop.tif").symlink_to("loop.tif")
    os.mkfifo(allowed / "pipe.tif")
    (allowed / "zero.tif").symlink_to("/dev/zero")
    return allowed


INSIDE = ["a%20b.tif", "inner/S2_B04.tif", "good/S2_B04.tif", "good.tif", "inner/../a%20b.tif", "bad/allowed/a%20b.tif"]


@pytest.mark.parametrize("name", INSIDE)
def test_files_in_the_folder(folder, name):
    """Are read, through links and ".." that stay in it too, with any of the URL's spellings."""
    made = sources(str(folder))
    for begin in ["file://", "FILE://localhost", "file:"]:
        assert pixels(f"{begin}{folder}/{name}", made).tolist() == ARRAY.tolist()
    with made.opened(f"file://{folder}/{name}") as file:
        assert file.name == name.rpartition("/")[2].replace("%20", " ")
        assert str(folder) not in file.name


def test_a_folder_behind_a_link(folder, tmp_path):
    """May be given by the link, and its files by either name."""
    (tmp_path / "link").symlink_to(folder)
    for base in (tmp_path / "link", folder):
        assert pixels(f"file://{base}/good.tif", sources(str(tmp_path / "link"))).shape == ARRAY.shape


def plain_tiff(path):
    """A TIFF that does not say where it lies."""
    size = {"count": ARRAY.shape[0], "height": ARRAY.shape[1], "width": ARRAY.shape[2], "dtype": ARRAY.dtype}
    with rasterio.open(path, "w", driver="GTiff", **size) as file:
        file.write(ARRAY)


def placed_at(url, made):
    """Transform and mask of an input."""
    with made.opened(url) as file, open_raster(file) as raster:
        place = raster.georeference
        return place and place.transform, raster.read().mask


def test_files_beside_a_file_in_the_folder(folder):
    """Say more of it, as of a file that a user names by its path; of an upload of that name nothing is looked for."""
    plain_tiff(folder / "x.tif")
    (folder / "x.tfw").write_text("2\n0\n0\n-2\n101\n199\n")
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(folder / "x.tif", "r+") as file:
        file.write_mask(ARRAY[0] > 9)
    made = sources(str(folder))
    transform, mask = placed_at(f"file://{folder}/x.tif", made)
    assert transform == (2, 0, 100, 0, -2, 200)
    np.testing.assert_array_equal(mask, ARRAY[0] > 9)
    (folder / "x.tif.aux.xml").write_text("<PAMDataset><GeoTransform>1,2,3,4,5,7</GeoTransform></PAMDataset>")
    assert placed_at(f"file://{folder}/inner/../x.tif", made)[0] == (2, 3, 1, 5, 7, 4)
    (folder / "inner/link.tif").symlink_to(folder / "x.tif")
    assert placed_at(f"file://{folder}/inner/link.tif", made) == (None, None)  # nothing lies beside the link
    assert placed_at(upload((folder / "x.tif").read_bytes(), "x.tif"), made) == (None, None)
    assert open_below(folder) == []


def test_what_gdal_would_have_to_see_beside_a_file(folder):
    """GDAL gets the bytes alone: what it would read without the files beside them is refused."""
    plain_tiff(folder / "x.tif")
    band = '<PAMRasterBand band="2"><NoDataValue>9</NoDataValue></PAMRasterBand>'
    (folder / "x.tif.aux.xml").write_text(f"<PAMDataset>{band}</PAMDataset>")
    with pytest.raises(
        InputError, match=r"^x\.tif\.aux\.xml states different nodata values for different bands \(None, 9, None\)"
    ):
        placed_at(f"file://{folder}/x.tif", sources(str(folder)))


@pytest.mark.parametrize("name", ["x.tif.aux.xml", "x.tif.msk", "x.tfw"])
@pytest.mark.parametrize("there", [True, False])
def test_a_file_beside_that_leads_out_of_the_folder(folder, tmp_path, name, there):
    """Is not read, and refused in the same words whether it is there or not."""
    plain_tiff(folder / "x.tif")
    (folder / name).symlink_to(tmp_path / ("secret.tif" if there else "nothing.tif"))
    with pytest.raises(InputError, match=r"^the file is not within the folder that this server reads from"):
        placed_at(f"file://{folder}/x.tif", sources(str(folder)))


def test_a_wrong_file_beside_is_named_without_its_folder(folder):
    """An error says which it is, and nothing of the machine; pipes and folders are passed over."""
    plain_tiff(folder / "x.tif")
    os.mkfifo(folder / "x.tif.msk")
    (folder / "x.wld").mkdir()
    made = sources(str(folder))
    assert placed_at(f"file://{folder}/x.tif", made) == (None, None)
    plain_tiff(folder / f"{'x' * 251}.tif")
    assert placed_at(f"file://{folder}/{'x' * 251}.tif", made) == (None, None)
    (folder / "x.tif.aux.xml").write_text("<PAMDataset>")
    with pytest.raises(InputError, match=r"^x\.tif\.aux\.xml, GDAL's metadata file .* is damaged XML") as caught:
        placed_at(f"file://{folder}/x.tif", made)
    assert str(folder) not in str(caught.value)


OUTSIDE = [
    *["../secret.tif", "../nothing.tif", "inner/../../secret.tif", "%2e%2e/secret.tif", "..%2fsecret.tif", "bad.tif"],
    *["bad/secret.tif", "bad/nothing.tif", "gone.tif", "zero.tif", "../allowed-not/x.tif", "../allowed-not/y.tif", ""],
    *["bad", "/../../../../../../../../etc/passwd", "inner/../..", "a%00b.tif", "%ff/../../secret.tif", "good/../../x"],
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_lies_outside_of_the_folder(folder, name):
    """Is refused in the same words whether it is there or not."""
    said = refused(f"file://{folder}/{name}", "not within the folder", sources(str(folder)))
    assert said == refused("file:///no/such/file", "not within the folder", sources(str(folder)))
    assert said == refused("file:///etc/passwd", "not within the folder", sources(str(folder)))
    assert str(folder) not in said


def test_in_the_folder_but_no_files(folder):
    """Folders, pipes, links without an end, and what is not there, each in its own words."""
    made = sources(str(folder))
    refused(f"file://{folder}/inner", "'inner' is a folder; name the files in it", made)
    refused(f"file://{folder}/pipe.tif", "'pipe.tif' is no file that can be read", made)
    refused(f"file://{folder}/loop.tif", "'loop.tif' cannot be opened", made)
    refused(f"file://{folder}/nothing.tif", "no file 'nothing.tif'", made)
    refused(f"file://{folder}/good.tif/x", "'x' cannot be opened", made)
    refused(f"file://{folder}/{'x' * 500}", "cannot be opened", made)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s.tif"))
        refused(f"file://{folder}/s.tif", "'s.tif' cannot be opened", made)


@pytest.mark.parametrize("made", [None, ""])
def test_no_folder(made, folder):
    """No file of the server is read."""
    refused(f"file://{folder}/good.tif", "--allowed-local-media-path", sources(made))
    refused("file:///nothing", "--allowed-local-media-path", sources(made))


@pytest.mark.parametrize(
    "url",
    ["file://host/etc/passwd", "file://good.tif", "file:good.tif", "file:", "file://[", "file:///a?b", "file:///a#b"],
)
def test_other_addresses_of_files(folder, url):
    """Are refused."""
    refused(url, 'must be file:///path|"#" must be written', sources(str(folder)))


@pytest.mark.parametrize("what", ["file", "folder"])
def test_exchanged_between_check_and_opening(folder, tmp_path, monkeypatch, what):
    """A file or folder that becomes a link to one outside is not read: what was opened is looked at."""
    opening = os.open

    def exchanged(path, *args, **options):
        if what == "file":
            (folder / "inner/S2_B04.tif").unlink()
            (folder / "inner/S2_B04.tif").symlink_to(tmp_path / "secret.tif")
        else:
            (folder / "inner").rename(folder / "other")
            (tmp_path / "S2_B04.tif").write_bytes(TIFF)
            (folder / "inner").symlink_to(tmp_path)
        monkeypatch.undo()
        return opening(path, *args, **options)

    made = sources(str(folder))
    monkeypatch.setattr(os, "open", exchanged)
    refused(
        f"file://{folder}/inner/S2_B04.tif", "cannot be opened" if what == "file" else "not within the folder", made
    )


def test_exchanged_on_other_systems(folder, tmp_path, monkeypatch):
    """Where the system does not say what is open, the path is followed once more."""
    monkeypatch.setattr("vllm_mmout.serving.inputs.local_files._FILES", tmp_path / "no-proc")
    made = sources(str(folder))
    assert pixels(f"file://{folder}/good.tif", made).shape == ARRAY.shape
    test_exchanged_between_check_and_opening(folder, tmp_path, monkeypatch, "folder")


def test_a_folder_that_is_none(folder):
    """Stops the server, with the flag."""
    for path in (folder / "good.tif", folder / "nothing"):
        with pytest.raises(OptionError, match="--allowed-local-media-path must be a folder, got"):
            sources(str(path))
