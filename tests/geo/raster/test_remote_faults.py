"""Servers that die, lie, change their files or never end: the right bytes, or an error that says what happened."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from http_server import a_running_server, a_server, no_proxies  # noqa: F401 - fixtures

from vllm_mmout.errors import InputError
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions
from vllm_mmout.geo.raster.remote.http_file import open_remote

QUICK = FetchOptions(timeout=10, retries=2, backoff=0.01)
HASTY = FetchOptions(timeout=0.2, retries=1, backoff=0.01)
DATA = np.random.default_rng(5).bytes(700_001)
AT, END = 65536, 700_001
"""What the first request leaves."""


def read(address, options=QUICK):
    """The whole file."""
    with open_remote(address, options) as file:
        return file.read()


def later(misbehaves, only=None):
    """An answer of parts that is right for the first request, then misbehaves, or in some of the requests alone."""

    def function(answer):
        if answer.number == 1 or (only is not None and answer.number not in only):
            answer.file(DATA)
        else:
            misbehaves(answer)

    return function


def dies(answer):
    """In the middle of the body."""
    start, stop = answer.part
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(DATA)}"}
    answer.give(206, DATA[start:stop], headers, sent=(stop - start) // 2)


def dies_unheard(answer):
    """Before it says a word."""
    answer.close_connection = True


def test_a_server_that_dies_once_in_the_middle(server):
    """The rest is asked for again, not what came."""
    assert read(server.answer("/data", later(dies, only={2}))) == DATA
    assert [asked.part for asked in server.asked] == [(0, AT), (AT, END), (AT + (END - AT) // 2, END)]


@pytest.mark.parametrize("death", [dies, dies_unheard])
def test_a_server_that_dies_for_ever(server, death):
    """It is asked as often as the options say, then an error says which bytes, how often, and what happened."""
    address = server.answer("/data", later(death))
    with pytest.raises(InputError, match=rf"{address}: bytes {AT} to {END} cannot be fetched, tried 3 times: .*"):
        read(address + "?signature=secret")
    assert len(server.asked) == 4
    server.asked.clear()
    with open_remote(address, QUICK) as file:
        with pytest.raises(InputError, match="MMOUT_FETCH_RETRIES"):
            file.read()
        server.serve("/data", DATA)
        assert file.read() == DATA  # what failed may be read once the server is back


def test_a_server_that_dies_while_it_sends_all(server):
    """One without parts: it is asked for all again; for ever, that is an error."""
    address = server.answer("/data", lambda a: a.give(200, DATA, sent=None if a.number == 3 else 400_000))
    assert read(address) == DATA
    server.answer("/data", lambda a: a.give(200, DATA, sent=400_000))
    with pytest.raises(InputError, match="its beginning cannot be fetched, tried 3 times"):
        read(address)


def test_no_server(server):
    """Nobody listens there."""
    port = server.unused_port()
    with pytest.raises(InputError, match=rf"http://127\.0\.0\.1:{port}/a\.tif: .* tried 2 times: .*refused"):
        read(f"http://user:secret@127.0.0.1:{port}/a.tif?secret", FetchOptions(retries=1, backoff=0.01))


def endless(answer):
    """Never stops; as chunks have no length, so has the answer."""
    answer.send_response(200)
    answer.end_headers()
    while not answer.told.ending.is_set():
        answer.write(b"\0" * 65536)


def test_a_server_that_is_endless(server):
    """It is heard up to the limit, which the error names with its setting."""
    limit = 2**20
    with pytest.raises(InputError, match=rf"the limit is {limit}; raise MMOUT_FETCH_LIMIT"):
        read(server.answer("/data", endless), FetchOptions(limit=limit))
    server.quiet()
    assert len(server.asked) == 1
    assert server.sent("/data") < 16 * 2**20  # what the system holds on its way


def stalls(answer):
    """Says something, and no more."""
    answer.send_response(206)
    answer.wfile.flush()
    answer.told.ending.wait(30)


def drips(answer):
    """Gives a byte now and then, each before the patience ends."""
    start, stop = answer.part
    answer.send_response(206)
    answer.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(DATA)}")
    answer.send_header("Content-Length", str(stop - start))
    answer.end_headers()
    while not answer.told.ending.wait(0.02):
        answer.write(DATA[start : start + 1])
        start += 1


def drips_headers(answer):
    """The same before the body."""
    answer.wfile.write(b"HTTP/1.1 206 ")
    while not answer.told.ending.wait(0.02):
        answer.wfile.write(b"a")


@pytest.mark.heavy
@pytest.mark.timing
def test_servers_that_are_too_slow(server):
    """A server that stretches its answer in any way is given up, and the error names the setting."""
    answers = {"/stalls": stalls, "/drips": drips, "/drips_headers": drips_headers}
    hasty = FetchOptions(timeout=0.5, retries=1, backoff=0.01)
    with ThreadPoolExecutor(len(answers)) as pool:  # at once, since each takes a second
        for path, slow in answers.items():
            server.answer(path, later(slow))
        errors = [pool.submit(read, server.address + path, hasty).exception for path in answers]
        errors = {path: error(120) for path, error in zip(answers, errors, strict=True)}
    for path, error in errors.items():
        assert isinstance(error, InputError)
        says = rf"{path}: .* tried 2 times: no answer, or too little of it, within 0\.5 s; .* MMOUT_FETCH_TIMEOUT"
        assert re.search(says, str(error))
        server.wait_for(path, 3)
        assert len(server.of(path)) == 3


@pytest.mark.heavy
def test_a_server_that_is_slow_once(server):
    """A server whose answer takes longer than the timeout is asked again."""
    patient = FetchOptions(timeout=1, retries=1, backoff=0.01)  # no other answer may take longer
    assert read(server.answer("/data", later(stalls, only={2})), patient) == DATA


def in_chunks(answer, status, data, headers=(), *, ends=True):
    """An answer that has no length, and an end of its own."""
    answer.send_response(status)
    for name, value in {**dict(headers), "Transfer-Encoding": "chunked"}.items():
        answer.send_header(name, value)
    answer.end_headers()
    for start in range(0, len(data), 50_000):
        piece = data[start : start + 50_000]
        answer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    if ends:
        answer.write(b"0\r\n\r\n")
    else:
        answer.close_connection = True


def gives_part(start=0, stop=0, *, total=END, body=None, **headers):
    """An answer that says it is a part some bytes off, or of a file of another size."""

    def function(answer):
        first, last = answer.part[0] + start, answer.part[1] + stop
        said = {"Content-Range": f"bytes {first}-{last - 1}/{total}", **headers}
        data = DATA[max(first, 0) : last]
        answer.give(206, data if body is None else data[:body], said)

    return function


LIES = {
    "it begins later": (gives_part(start=5), r"asked for bytes 65536 to 700001, the server says it gave"),
    "it begins earlier": (gives_part(start=-5), "the server says it gave 'bytes 65531-700000/700001'"),
    "it ends later": (gives_part(stop=5, total="*"), "the server says it gave 'bytes 65536-700005/\\*'"),
    "it says nothing": (lambda a: a.give(206, DATA[AT:]), "the server says it gave 'nothing'"),
    "it has several parts": (gives_part(**{"Content-Range": "bytes 1-2/9, 4-5/9"}), "the server says it gave"),
    "no numbers": (gives_part(**{"Content-Range": f"bytes {'9' * 5000}-/1"}), "the server says it gave"),
    "the body is shorter": (gives_part(body=1000), "announced bytes 65536 to 700001, but sent 1000 bytes"),
    "the body is longer": (
        lambda a: a.give(206, DATA[AT:] + b"more", {"Content-Range": f"bytes {AT}-{END - 1}/{END}"}),
        "announced bytes 65536 to 700001, but sent 634469 bytes",
    ),
    "the body is longer, in chunks": (
        lambda a: in_chunks(a, 206, DATA[AT:] + b"more", {"Content-Range": f"bytes {AT}-{END - 1}/{END}"}),
        "announced bytes 65536 to 700001, but sent more",
    ),
    "the body has no length, and is shorter": (
        gives_part(body=-1, **{"Content-Length": None, "Connection": "close"}),
        "tried 3 times: the connection ended 1 bytes before its answer did",
    ),
    "another size": (gives_part(total=len(DATA) + 1), "was changed on its server while it was read"),
    "all of it": (lambda a: a.give(200, DATA), "or its server ignores range requests now"),
    "there is no such part": (lambda a: a.give(416), "was changed while it was read, .* the server answered 416"),
    "one byte at a time": (
        lambda a: gives_part(stop=a.part[0] + 1 - a.part[1])(a),
        "tried 3 times: the server gave 1 bytes of",
    ),
    "it is compressed": (gives_part(**{"Content-Encoding": "gzip"}), r"is sent compressed \(gzip\)"),
}


@pytest.mark.parametrize(("lie", "says"), LIES.values(), ids=LIES)
def test_a_server_that_lies(server, lie, says):
    """An error that shows what was asked and what was said; never other bytes than those of the file."""
    with pytest.raises(InputError, match=says):
        read(server.answer("/data", later(lie)))


def test_a_first_part_that_is_larger_than_asked_for(server):
    """Is not taken, whatever its size; the file is asked for whole, with the limit that this has."""
    everything = {"Content-Range": f"bytes 0-{END - 1}/{END}"}
    address = server.answer("/data", lambda a: a.give(206, DATA, everything) if a.part else a.file(DATA))
    assert read(address) == DATA
    assert [asked.part for asked in server.asked] == [(0, AT), None]
    with pytest.raises(InputError, match="the limit is 700000"):
        read(address, FetchOptions(limit=700_000, retries=0))


def test_a_server_of_something_else(server):
    """Of what is no answer a message shows the beginning alone."""

    def speaks(answer):
        answer.wfile.write(b"?" * 60_000 + b"\r\n")
        answer.close_connection = True

    with pytest.raises(InputError, match=r"the connection failed: \?{300}\.\.\.; try again"):
        read(server.answer("/data", speaks))


def test_a_server_that_gives_smaller_parts_than_asked_for(server):
    """It is asked for the rest, as often as it takes."""

    def caps(answer):
        start, stop = answer.part
        answer.part = (start, min(stop, start + 70_000))
        answer.file(DATA)

    assert read(server.answer("/data", caps)) == DATA
    assert len(server.asked) == 11


def closes_after(count):
    """Each of its answers is closed early, by a proxy that gives no more at once."""

    def function(answer):
        start, stop = answer.part
        said = {"Content-Range": f"bytes {start}-{stop - 1}/{len(LONG)}"}
        answer.give(206, LONG[start:stop], said, sent=count if count < stop - start else None)  # a whole one stays open

    return function


LONG = np.random.default_rng(6).bytes(5 * 2**20 + 1)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_server_that_closes_each_answer_early(server, retries):
    """As long as each brings its share the file goes on to come, and no byte of it comes twice."""
    address = server.answer("/data", closes_after(2**20))
    assert read(address, FetchOptions(timeout=10, retries=retries, backoff=0.01)) == LONG
    starts = [asked.part[0] for asked in server.asked]
    assert starts == [0, *range(AT, len(LONG), 2**20)]
    assert server.sent("/data") == len(LONG)


def test_a_server_whose_answers_bring_next_to_nothing(server):
    """Each was in vain, though a file would be whole at the end of time."""
    address = server.answer("/data", lambda a: closes_after(2**20 if a.number < 4 else 1000)(a))
    with pytest.raises(InputError, match=rf"bytes {AT} to {len(LONG)} cannot be fetched, tried 3 times: "):
        read(address)
    assert len(server.asked) == 6


def test_a_server_that_does_not_know_the_size(server):
    """It is asked for the whole file."""
    address = server.answer("/data", lambda a: a.file(DATA, claimed="*"))
    assert read(address) == DATA
    assert [asked.part for asked in server.asked] == [(0, AT), None]


def test_a_server_that_sends_chunks(server):
    """Their end is the file's; without it the file is not whole."""
    assert read(server.answer("/data", lambda a: in_chunks(a, 200, DATA))) == DATA
    with pytest.raises(InputError, match="tried 3 times"):
        read(server.answer("/data", lambda a: in_chunks(a, 200, DATA, ends=False)))


@pytest.mark.parametrize("what", ["ETag", "Last-Modified"])
def test_a_file_that_changes_while_it_is_read(server, what):
    """Is an error as soon as an answer tells it, and no bytes of two versions are joined."""
    values = {"ETag": ['"one"', '"two"'], "Last-Modified": [f"Mon, 0{day} Jan 2024 00:00:00 GMT" for day in (1, 2)]}
    address = server.answer("/data", lambda a: a.file(DATA, headers={what: values[what][a.number > 2]}))
    with open_remote(address, QUICK) as file:
        file.seek(300_000)
        assert file.read(10) == DATA[300_000:300_010]
        with pytest.raises(InputError, match=rf"{address} was changed on its server while it was read; send it again"):
            file.read()


def test_a_weak_tag_is_the_same_tag(server):
    """Some servers weaken the tag of what they give in parts."""
    tags = ['"one"', 'W/"one"']
    assert read(server.answer("/data", lambda a: a.file(DATA, headers={"ETag": tags[a.number > 1]}))) == DATA


REFUSALS = {
    401: "401 Unauthorized; write user and password into the address",
    403: "403 Forbidden; ask for permission",
    404: "404 Not Found; check the address",
    410: "410 Gone; check the address",
    418: "418 I'm a Teapot; see whether",
    599: "answered 599; see whether",
    204: "204 No Content",
    304: "304 Not Modified",
}


@pytest.mark.parametrize(("status", "says"), REFUSALS.items())
def test_a_server_that_refuses(server, status, says):
    """The status is told, and it is asked once."""
    address = server.answer("/a.tif", lambda a: a.give(status, length=0))
    with pytest.raises(
        InputError, match=rf"^{address}: the server answered {re.escape(says.removeprefix('answered '))}"
    ):
        read(address + "?signature=secret")
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_server_that_is_busy(server, status):
    """It is asked again; for ever, that is an error with the status."""
    address = server.answer("/data", lambda a: a.file(DATA) if a.number in (2, 4) else a.give(status, b"busy"))
    assert read(address) == DATA
    server.answer("/data", lambda a: a.give(status, b"busy"))
    with pytest.raises(
        InputError, match=rf"its beginning cannot be fetched, tried 3 times: the server answered {status}"
    ):
        read(address)


@pytest.mark.heavy
def test_a_server_that_asks_to_wait(server):
    """It is left alone for as long as it asks, if that is not longer than the patience; else an error says so."""
    times = []

    def busy(answer):
        times.append(time.monotonic())
        if answer.number == 1:
            answer.give(429, b"", {"Retry-After": "1"})
        else:
            answer.file(DATA)

    assert read(server.answer("/data", busy)) == DATA
    assert times[1] - times[0] >= 1
    address = server.answer("/later", lambda a: a.give(503, b"", {"Retry-After": "3600"}))
    with pytest.raises(InputError, match=r"503 .*asks to wait 3600 s, longer than MMOUT_FETCH_TIMEOUT \(10 s\)"):
        read(address)
    assert len(server.of("/later")) == 1


@pytest.mark.parametrize("time", ["soon", "9" * 5000, "Mon, 01 Jan 99999 00:00:00 GMT"])
def test_a_time_to_wait_that_is_none(server, time):
    """Counts for nothing."""
    odd = {"Retry-After": time}
    assert read(server.answer("/odd", lambda a: a.give(503, b"", odd) if a.number == 1 else a.file(DATA))) == DATA


def test_what_is_compressed_though_that_was_excluded(server):
    """Is refused with the first answer too."""
    with pytest.raises(InputError, match=r"is sent compressed \(gzip\)"):
        read(server.serve("/data", DATA, ranges=False, headers={"Content-Encoding": "gzip"}))
    assert server.asked[0].headers["accept-encoding"] == "identity"


def test_a_disk_that_is_full(server, monkeypatch):
    """Says so."""
    from vllm_mmout.geo.raster.remote import http_file as remote

    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def close(self):
            closed.append(self)

    closed = []
    monkeypatch.setattr(remote.tempfile, "TemporaryFile", Full)
    with pytest.raises(InputError, match=r"cannot be stored in .*: No space left on device"):
        read(server.serve("/data", DATA, ranges=False))
    assert closed


@pytest.mark.parametrize("address", ["http://", "https://user:secret@", "http://host:port/a.tif", "http://[::1/a.tif"])
def test_an_address_that_cannot_be_understood(address):
    """Is not shown, since it may hold a password anywhere."""
    with pytest.raises(InputError, match="it must be https://host/path") as caught:
        open_remote(address)
    assert "secret" not in str(caught.value)
