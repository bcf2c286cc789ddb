"""A running server that is attacked: it refuses, fetches nothing that is forbidden, keeps nothing, and goes on."""

from __future__ import annotations

import base64
import json
import select
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil
import pytest
import water_oracle
from asked_server import metric, open_files
from http_server import a_running_server, a_server  # noqa: F401 - fixtures
from scene_clients import wait_for

rasterio = pytest.importorskip("rasterio", reason="it writes the files")
pytestmark = [
    pytest.mark.engine,
]
PLACE = rasterio.Affine(30, 0, 5, 0, -30, 7)
EDITS, POOLING = "/v1/images/edits", "/pooling"
MIB = 2**20


def geotiff(side=16):
    """A small scene of the embedded model's bands, as bytes."""
    with rasterio.MemoryFile() as file:
        with file.open(driver="GTiff", count=6, height=side, width=side, dtype="uint16", transform=PLACE) as raster:
            raster.write(water_oracle.scene(5, side, side))
        return file.read()


GOOD = geotiff()


@pytest.fixture(scope="module")
def client(water_server):
    """A client of the server with the flags that a user gets by default."""
    with httpx.Client(base_url=water_server.url, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def guarded(guarded_server):
    """A client of the server with small limits, which has its key."""
    headers = {"Authorization": "Bearer secret"}
    with httpx.Client(base_url=guarded_server.url, timeout=60, trust_env=False, headers=headers) as client:
        yield client


@pytest.fixture(autouse=True)
def _goes_on(client, guarded):
    """After each test both servers answer, the next good request too."""
    yield
    for one in (client, guarded):
        assert one.get("/health").status_code == 200
        # The places of clients that have gone are free as soon as the server has seen that.
        answer = wait_for(lambda one=one: _unless_full(one.post(EDITS, files={"image": GOOD})), "no place is free")
        assert answer.status_code == 200


def _unless_full(answer):
    return None if answer.status_code == 429 else answer


def refused(answer, *statuses):
    """Check that a request was refused as its own client's fault; returns the message."""
    assert answer.status_code in (statuses or (400,)), answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["message"]


def named(client, image):
    """Have the server open what a text names, by each way in which it can be sent."""
    yield client.post(EDITS, data={"image": image, "prompt": ""})
    yield client.post(EDITS, json={"image": image})
    yield client.post(EDITS, json={"images": [{"image_url": image}]})
    yield client.post(EDITS, data={"image[]": [image, image]})
    yield client.post("/v1/images/variations", data={"image": image})
    yield client.post(POOLING, json={"data": image})
    yield client.post(POOLING, json={"data": [image]})
    yield client.post(POOLING, json={"data": {"a": image}})


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::ffff:7f00:1]",
        pytest.param("localhost.", marks=pytest.mark.slow),  # which servers of names may be asked for, seconds long
    ],
)
def test_no_address_of_this_machine_is_fetched(client, server, host):
    """By no way of naming an input this machine is asked for anything; `test_addresses` has its other spellings."""
    server.serve("/scene.tif", GOOD)
    port = urlsplit(server.address).port
    for answer in named(client, f"http://{host}:{port}/scene.tif"):
        refused(answer)
    assert not server.asked


def test_the_server_does_not_ask_itself(water_server, client, guarded):
    """Its own address is no public one; where this machine is allowed, its answer is no picture."""
    before = metric(water_server, "http_requests_total", handler="/metrics")
    for answer in named(client, f"{client.base_url}/metrics"):
        refused(answer)
    assert metric(water_server, "http_requests_total", handler="/metrics") <= before + 2  # those of this test
    for answer in named(guarded, f"{guarded.base_url}/health"):
        refused(answer)


@pytest.mark.parametrize("text", ["/etc/passwd", "file:///etc/passwd", "/vsicurl/http://127.0.0.1:{port}/scene.tif"])
def test_what_names_something_else_is_refused(client, server, text):
    """Paths and GDAL's names open nothing and say nothing of this machine; `test_sources` has more of them."""
    server.serve("/scene.tif", GOOD)
    for answer in named(client, text.format(port=urlsplit(server.address).port)):
        message = refused(answer)
        assert "root:" not in message
    assert not server.asked


def vrt(source, driver="GTiff"):
    """A VRT that names another file."""
    band = "".join(
        f'<VRTRasterBand dataType="UInt16" band="{number}"><SimpleSource><SourceFilename relativeToVRT="0">{source}'
        f"</SourceFilename><SourceBand>{number}</SourceBand></SimpleSource></VRTRasterBand>"
        for number in range(1, 7)
    )
    return f'<VRTDataset rasterXSize="16" rasterYSize="16">{band}</VRTDataset>'.encode()


def test_a_vrt_opens_nothing(client, guarded, server, tmp_path):
    """A VRT that is uploaded, sent as a data URL or fetched opens neither a file nor an address."""
    path = tmp_path / "scene.tif"
    path.write_bytes(GOOD)
    address = server.serve("/scene.tif", GOOD)
    for source in (str(path), f"/vsicurl/{address}", address):
        content = vrt(source)
        whole = f"data:image/tiff;base64,{base64.b64encode(content).decode()}"
        fetched = server.serve("/scene.vrt", content)
        for one in (client, guarded):
            refused(one.post(EDITS, files={"image": ("scene.vrt", content)}))
            refused(one.post(EDITS, files={"image": (str(path), content)}))
            refused(one.post(EDITS, data={"image": whole}))
            refused(one.post(POOLING, json={"data": whole}))
        refused(guarded.post(EDITS, data={"image": fetched}))
        refused(guarded.post(POOLING, json={"data": fetched}))
    assert server.of("/scene.vrt")
    assert not server.of("/scene.tif")


def test_a_name_of_an_upload_is_no_path(client, tmp_path):
    """An upload without an image in it is refused, whatever file its name names."""
    path = tmp_path / "scene.tif"
    path.write_bytes(GOOD)
    refused(client.post(EDITS, files={"image": (str(path), b"no image")}))


def test_links_lead_out_of_no_folder(guarded, guarded_folder):
    """Of the folder that the server reads from, no link and no ".." leads to another one."""
    inside, outside = guarded_folder / "local", guarded_folder / "outside"
    outside.mkdir(exist_ok=True)
    (inside / "scene.tif").write_bytes(GOOD)
    (outside / "secret.tif").write_bytes(GOOD)
    for link, target in (("link.tif", outside / "secret.tif"), ("folder", outside), ("up", Path("/"))):
        if not (inside / link).is_symlink():
            (inside / link).symlink_to(target)
    for answer in [*named(guarded, f"file://{inside}/scene.tif")][:3]:
        assert answer.status_code == 200, answer.text
    for path in (f"{inside}/link.tif", f"{inside}/../outside/secret.tif"):
        for answer in named(guarded, f"file://{path}"):
            refused(answer)
    for path in (
        f"{inside}/folder/secret.tif",
        f"{inside}/%2e%2e/outside/secret.tif",
        f"{inside}/up{outside}/secret.tif",
    ):
        refused(guarded.post(EDITS, data={"image": f"file://{path}"}))


def test_a_redirect_leads_nowhere_else(guarded, server):
    """An allowed host that says it is elsewhere leads to no other name of this machine, nor to a file."""
    port = urlsplit(server.address).port
    server.serve("/scene.tif", GOOD)
    for target in (f"http://localhost:{port}/scene.tif", f"http://127.0.0.2:{port}/scene.tif", "file:///etc/passwd",
                   f"http://[::1]:{port}/scene.tif", f"http://2130706433:{port}/scene.tif"):  # fmt: skip
        address = server.answer("/elsewhere", lambda answer, target=target: answer.redirect(target))
        refused(guarded.post(EDITS, data={"image": address}))
    assert server.of("/elsewhere")
    assert not server.of("/scene.tif")
    loop = server.answer("/loop", lambda answer: answer.redirect("/loop"))
    refused(guarded.post(EDITS, data={"image": loop}))


def endless(answer):
    """Send a picture without an end."""
    answer.send_response(200)
    answer.send_header("Content-Type", "image/tiff")
    answer.end_headers()
    answer.close_connection = True
    answer.write(GOOD[:64])
    while not answer.told.ending.is_set():
        answer.write(bytes(2**16))


WRONG = {
    "endless": endless,
    "silent": lambda answer: answer.told.ending.wait(20),
    "ends early": lambda answer: answer.give(200, GOOD[:300], length=len(GOOD)),
    "dies": lambda answer: answer.give(500, b"dead"),
    "says it has gigabytes": lambda answer: answer.give(200, GOOD, length=2**40, sent=len(GOOD)),
    "gives more than is taken": lambda answer: answer.file(bytes(3 * MIB), ranges=False),
    "gives a page": lambda answer: answer.give(200, b"<html>sign in</html>"),
    "speaks another language": lambda answer: answer.write(b"\x00\x01\x02garbage\r\n\r\n"),
    "closes": lambda answer: setattr(answer, "close_connection", True),
    "is not there": lambda answer: answer.give(404, b"none"),
    "is zipped": lambda answer: answer.give(200, zlib.compress(bytes(MIB)), {"Content-Encoding": "deflate"}),
}


def test_a_server_that_misbehaves_is_given_up(guarded, server):
    """A file's server that lies, dies or never ends is the client's fault, and is waited for no longer than said."""
    for number, (how, answer) in enumerate(WRONG.items()):
        address = server.answer(f"/{number}.tif", answer)
        assert refused(guarded.post(EDITS, data={"image": address})), how
        assert server.of(f"/{number}.tif")
        assert server.sent(f"/{number}.tif") < 64 * MIB
    assert refused(guarded.post(POOLING, json={"data": address}))


def test_an_allowed_server_is_asked(guarded, server):
    """The same address gives a result where its server behaves: what was refused was not the address."""
    address = server.serve("/scene.tif", GOOD)
    assert guarded.post(EDITS, data={"image": address}).status_code == 200


def png_bomb(side=100_000, rows=600):
    """A PNG of some kilobytes that declares ten thousand million pixels; some rows of them are there."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(bytes(side * 3 + 1)) for _ in range(rows // 4)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def tiff_bomb(*, tiled, side=100_000):
    """A TIFF of some kilobytes that declares as many, in one segment or in tiles that lie in one place."""
    packed = zlib.compress(bytes(40 * MIB), 9)
    segment = {322: side, 323: side} if tiled else {278: side}
    tags = {256: side, 257: side, 258: 8, 259: 8, 262: 1, 277: 1, **segment}
    tags |= {324: 512, 325: len(packed)} if tiled else {273: 512, 279: len(packed)}
    entries = b"".join(struct.pack("<HHII", code, 4, 1, value) for code, value in sorted(tags.items()))
    directory = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4)
    return directory.ljust(512, b"\0") + packed


BOMBS = {
    "png": png_bomb,
    "tiff": lambda: tiff_bomb(tiled=False),
    "tiled tiff": lambda: tiff_bomb(tiled=True),
}


def memory(pid):
    """Bytes of memory of a process and its children."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_info().rss for process in processes)


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused_unopened(client, water_server, kind):
    """Some kilobytes that declare 100,000 x 100,000 pixels are refused by their header, without memory for them."""
    bomb = BOMBS[kind]()
    assert 20_000 < len(bomb) < 100_000
    message = refused(client.post(EDITS, files={"image": bomb}))
    assert "100000 x 100000" in message
    assert "--mmout-max-pixels" in message
    before = memory(water_server.pid)
    for answer in (
        client.post(EDITS, files={"image": bomb}),
        client.post(EDITS, files={"image": bomb}, data={"window": "0,0,16,16"}),
        client.post(POOLING, json={"data": f"data:;base64,{base64.b64encode(bomb).decode()}"}),
    ):
        refused(answer)
    assert memory(water_server.pid) - before < 16 * MIB


def connection(url, path, length, body, *, kind="multipart/form-data; boundary=x", key="Bearer secret"):
    """A connection on which a request was begun."""
    parts = urlsplit(url)
    made = socket.create_connection((parts.hostname, parts.port), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Type: {kind}\r\n"
    made.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
    return made


def status_on(made):
    """The status that comes on a connection, and its JSON."""
    response = HTTPResponse(made)
    response.begin()
    return httpx.Response(response.status, content=response.read(), headers=response.getheaders())


PART = b'--x\r\nContent-Disposition: form-data; name="image"; filename="s.tif"\r\n\r\n'


@pytest.mark.parametrize("path", [EDITS, pytest.param(POOLING, marks=pytest.mark.slow)])
def test_a_slow_client_is_told_so(guarded_server, path):
    """A body that does not come on is given up with 408, also where single bytes come."""
    kind = "application/json" if path == POOLING else "multipart/form-data; boundary=x"
    begun = b"" if path == POOLING else PART
    with connection(guarded_server.url, path, 10_000, b"", kind=kind) as silent:
        silent.settimeout(60)
        assert "--mmout-receive-timeout" in refused(status_on(silent), 408)
    with connection(guarded_server.url, path, 10_000, begun, kind=kind) as slow:
        slow.settimeout(0.2)
        for _ in range(100):
            try:
                if slow.recv(1, socket.MSG_PEEK):
                    break
            except TimeoutError:
                slow.sendall(b" ")
        slow.settimeout(60)
        assert "--mmout-receive-timeout" in refused(status_on(slow), 408)


BROKEN = [
    b"", b"--x", b"--x\r\n", PART, PART + GOOD, PART + GOOD + b"\r\n--x", PART + GOOD + b"\r\n--y--\r\n",
    b"\r\n" * 100, b"--x--\r\n", b"--x\r\n\r\n\r\n--x--\r\n",
    b"--x\r\nContent-Disposition: form-data\r\n\r\nx\r\n--x--",
    b"--x\r\n" + b"A: b\r\n" * 10_000 + b"\r\n\r\n--x--\r\n", PART.replace(b"image", b"i" * 1000) + b"\r\n--x--",
    (PART + b"\r\n") * 200 + b"--x--\r\n",
    b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\n\xff\r\n--x--\r\n',
]  # fmt: skip


def test_a_broken_form_is_refused(client):
    """A form that ends early, or is none, is refused."""
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for body in BROKEN:
        refused(client.post(EDITS, content=body, headers=headers), 400, 413)


def test_a_client_that_closes_leaves_nothing(water_server, client):
    """An upload that its client cuts leaves neither a file nor a place taken."""
    before = open_files(water_server)
    for _ in range(3):
        made = connection(water_server.url, EDITS, 64 * MIB, PART + bytes(4 * MIB))
        deadline = time.monotonic() + 120
        while not open_files(water_server) - before:
            assert time.monotonic() < deadline, "nothing of the upload was written"
            time.sleep(0.01)
        made.close()
        while left := open_files(water_server) - before:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
    assert metric(water_server, "mmout:decodes_pending") == 0


def test_the_key_guards_every_route(guarded, guarded_server):
    """Without the server's key none of our routes answers, whatever is sent."""
    data = f"data:;base64,{base64.b64encode(GOOD).decode()}"
    path = stored(guarded)
    with httpx.Client(base_url=guarded_server.url, timeout=60, trust_env=False) as client:
        for key in (None, "Bearer wrong"):
            client.headers = {} if key is None else {"Authorization": key}
            for answer in (
                client.post(EDITS, files={"image": GOOD}),
                client.post(EDITS, json={"image": data}),
                client.post("/v1/images/variations", files={"image": GOOD}),
                client.post("/v1/images/generations", json={"prompt": "x"}),
                client.post(POOLING, json={"data": data}),
                client.get("/v1/images/results/x.tif"),
                client.get(path),
                client.head(path),
            ):
                assert answer.status_code == 401, answer.text
        for key in ("", "Bearer", "Bearer secretx", "Basic secret", "secret"):
            client.headers = {"Authorization": key}
            assert client.post(POOLING, json={"data": data}).status_code == 401
            assert client.get(path).status_code == 401
        escaped = json.dumps({"data": data}).replace("data", r"\u0064ata", 1)
        answer = client.post(POOLING, content=escaped, headers={"Content-Type": "application/json"})
        assert answer.status_code in {400, 401}, answer.text  # vLLM's own route, which has no processor for it


def test_the_key_is_asked_for_by_other_spellings_too(guarded_server):
    """No spelling of a route's path leads around the key."""
    data = f"data:;base64,{base64.b64encode(GOOD).decode()}"
    with httpx.Client(base_url=guarded_server.url, timeout=60, trust_env=False, follow_redirects=True) as client:
        for path in ("//pooling", "/pooling/", "/POOLING", "/v1//images/edits", "/v1/images/edits/"):
            answer = client.post(path, json={"data" if "pool" in path.lower() else "image": data})
            assert answer.status_code in {401, 404, 405}, answer.text


def stored(client):
    """The path of a result that is stored."""
    answer = client.post(EDITS, files={"image": GOOD}, data={"response_format": "url"})
    return urlsplit(answer.raise_for_status().json()["data"][0]["url"]).path


NAMES = [
    "..%2f..%2fetc%2fpasswd", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..", ".", "%00", "x%00.tif",
    "%2fetc%2fpasswd",
    "..%5c..%5cetc", ".lock", "lock", "*", "%ff%fe", "a" * 5000, "%252e%252e%252fetc", "{name}", "?name=x", ";x",
]  # fmt: skip


def test_no_name_of_a_result_leads_elsewhere(water_server):
    """Whatever a result is called, nothing but a result is found."""
    parts = urlsplit(water_server.url)
    for name in NAMES:
        with socket.create_connection((parts.hostname, parts.port), timeout=60) as made:  # a client would tidy the path
            made.sendall(f"GET /v1/images/results/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = status_on(made)
        assert answer.status_code == 404, (name, answer.text)
        assert "root:" not in answer.text


@contextmanager
def sending(url):
    """A request of nearly the largest size that is taken, whose body comes as slowly as it may, again and again.

    While it is taken it holds a place. The first may find none, and one may end since this process had no time for it.
    It is begun before the block: the server reads for seconds from who finds no place before it says so.
    """
    done = Event()

    def begun():
        return connection(url, EDITS, 2 * MIB - 1, PART)

    def send(made):
        while not done.is_set():
            with made, suppress(OSError):
                for _ in range(48):
                    made.sendall(bytes(2**15))
                    if done.wait(0.3) or select.select([made], [], [], 0)[0]:  # it was answered
                        break
            made = begun()
        made.close()

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, begun())
        try:
            yield
            assert not sent.done()
        finally:
            done.set()


def test_a_full_server_says_when_to_come_back(guarded, guarded_server):
    """With all places taken each of our routes is refused with Retry-After; what takes no place is not."""
    deadline = time.monotonic() + 120

    def answer_when(path, *, full, **body):
        while ((answer := guarded.post(path, **body)).status_code == 429) != full:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)
        return answer

    image = {"files": {"image": GOOD}}
    data = f"data:;base64,{base64.b64encode(GOOD).decode()}"
    with sending(guarded_server.url), sending(guarded_server.url):
        answers = [
            answer_when(EDITS, full=True, **image),
            answer_when("/v1/images/generations", full=True, json={"prompt": "x"}),
            answer_when(POOLING, full=True, json={"data": data}),
        ]
        fetched = guarded.get(f"/v1/images/results/{'0' * 43}.png")
    for answer in answers:
        refused(answer, 429)
        assert int(answer.headers["retry-after"]) > 0
    refused(fetched, 404)
    assert answer_when(EDITS, full=False, **image).status_code == 200


def test_clients_without_the_key_take_no_place(guarded, guarded_server):
    """However many begin a body for ``/pooling``, who has the key is served; nothing of theirs is read."""
    begun = b'{"data": "data:;base64,' + bytes(1000)
    with ExitStack() as held:
        for length in (MIB, MIB, MIB, 60_000, 60_000, 60_000):
            held.enter_context(
                connection(guarded_server.url, POOLING, length, begun, kind="application/json", key="Bearer no")
            )
        for _ in range(3):
            answer = guarded.post(EDITS, files={"image": GOOD})
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("size", [1000, 200_000])
def test_data_without_the_key_is_not_run(guarded_server, size):
    """A small body is refused as vLLM's routes below /v1 do it, a large one by vLLM's route."""
    before = metric(guarded_server, "mmout:tiles_total")
    data = f"data:;base64,{base64.b64encode(GOOD).decode()}"
    answer = httpx.post(f"{guarded_server.url}{POOLING}", json={"data": data, "user": "x" * size}, timeout=60)
    assert answer.status_code == (401 if size == 1000 else 400), answer.text
    assert metric(guarded_server, "mmout:tiles_total") == before


@pytest.mark.slow  # `test_stalled_readers` has it of a server without an engine
def test_clients_that_take_nothing_hold_no_place(guarded, guarded_server):
    """Their connections are ended in time, without a traceback in the log, and who comes after them is served."""
    array = np.full((6, 1000, 1000), 7000, np.uint16)
    array[1] += np.random.default_rng(6).integers(0, 256, (1000, 1000), np.uint16)  # green, of which all classes depend
    with rasterio.MemoryFile() as file:
        layout = {"count": 6, "height": 1000, "width": 1000, "dtype": "uint16", "compress": "deflate", "tiled": True}
        with file.open(driver="GTiff", transform=PLACE, **layout) as raster:
            raster.write(array)
        content = file.read()
    form = {"files": {"image": content}, "data": {"output": "probabilities", "output_format": "npz"}}
    sent = httpx.Request("POST", f"{guarded_server.url}{EDITS}", **form)
    body, kind = sent.read(), sent.headers["content-type"]
    log = guarded_server.log

    def told():
        return log.read_text(errors="replace").count("--mmout-send-timeout); its connection was ended")

    before, failures = told(), log.read_text(errors="replace").count("Traceback")
    deadline = time.monotonic() + 120
    with ExitStack() as held:
        while told() < before + 2:
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            made = held.enter_context(connection(guarded_server.url, EDITS, len(body), b"", kind=kind))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with suppress(OSError):
                made.sendall(body)
            time.sleep(0.5)  # one that finds no place is answered, and counts for nothing
        while (answer := guarded.post(EDITS, files={"image": GOOD})).status_code == 429:
            assert time.monotonic() < deadline, "a client that takes nothing holds a place"
            time.sleep(0.2)
        assert answer.status_code == 200
    assert log.read_text(errors="replace").count("Traceback") == failures


def test_a_large_body_is_refused(guarded):
    """More than the server takes is refused, announced or not."""
    refused(guarded.post(EDITS, files={"image": bytes(3 * MIB)}), 413)

    def pieces():
        yield PART
        for _ in range(48):
            yield bytes(2**16)

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    refused(guarded.post(EDITS, content=pieces(), headers=headers), 413)
    url = f"data:;base64,{base64.b64encode(bytes(2 * MIB)).decode()}"
    refused(guarded.post(POOLING, json={"data": url}), 413)


def test_deep_and_wide_json_is_refused(client):
    """JSON nested without an end, or with a value of any size, ends in an error of the client's."""
    deep = b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    bodies = [
        deep, deep.replace(b"data", b"image"), b'{"image": 1e999}', b'{"data":' + b"9" * 5000 + b"}",
        b'{"data": [[[', b'{"data": "\\ud800"}', b'{"data": "\xff"}', b"[]", b"null", b'{"data":{}}',
    ]  # fmt: skip
    for path in (EDITS, "/v1/images/generations", POOLING):
        for body in [body for body in bodies if path != POOLING or b'"data"' in body]:  # others are for vLLM's route
            refused(client.post(path, content=body, headers={"Content-Type": "application/json"}))
